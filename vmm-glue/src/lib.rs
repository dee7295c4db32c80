//! Launchers of doorpost's guest, and what the host knows of the run.

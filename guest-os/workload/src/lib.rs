//! The contract of doorpost's guest and host: jobs, offsets, patterns, latency histograms, reports, framing.

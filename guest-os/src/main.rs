//! The guest.
#![no_std]
#![no_main]

//! The guests that this binary carries.

use vmm_glue::guest::Arch;

/// Each guest: an ELF image without symbols.
const IMAGES: &[(Arch, &[u8])] = &[(Arch::X86_64, include_bytes!(concat!(env!("OUT_DIR"), "/guest-x86_64")))];

/// The guest for an architecture.
pub fn of(arch: Arch) -> Option<&'static [u8]> {
    IMAGES.iter().find(|(known, _)| *known == arch).map(|(_, image)| *image)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_architecture_has_a_small_guest() {
        for arch in Arch::ALL {
            let image = of(*arch).unwrap();
            assert!(image.starts_with(b"\x7fELF"), "{arch}");
            assert!(image.len() < 400 << 10, "{arch}: {} bytes", image.len());
        }
    }
}

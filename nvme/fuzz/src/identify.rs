//! The driver with identify data out of the fuzzer's bytes, and a device that is honest otherwise.

use hal::fake::FakeDma;
use nvme::Controller;
use nvme::spec::{IdentifyKind, Version};
use nvme_emulator::{Config, NamespaceConfig, NullBackend};

use super::device::{Device, Overlay};
use super::input::Input;

/// Lets the driver read identify data that is spoiled as the bytes say.
pub fn identify(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let setup = input.u8();
    let config = Config {
        version: if setup & 1 != 0 {
            Version::new(1, 0, 0)
        } else {
            Version::new(2, 0, 0)
        },
        namespace_limit: 16,
        ..Config::default()
    };
    let bus = FakeDma::new(1 << 20);
    let namespaces = [3, 7, 16].map(|id| NamespaceConfig::new(id, 1 << 20, 512, NullBackend));
    // A tick of 1 ms: nothing is late.
    let device = Device::new(config, namespaces, bus.clone(), Input::new(&[]), 1_000_000);
    let kinds = [
        IdentifyKind::Controller,
        IdentifyKind::Namespace,
        IdentifyKind::ActiveNamespaces,
    ];
    let mut overlays = kinds.map(|kind| (kind as u8, Vec::<Overlay>::new()));
    while !input.is_empty() {
        let head = input.u8();
        let Some((_, list)) = overlays.get_mut(usize::from(head & 3)) else {
            continue;
        };
        if head & 4 != 0 || list.is_empty() {
            list.push(Overlay::new());
        }
        let offset = usize::from(input.u16());
        // Bytes as they are, or one value again and again: long lists from short inputs.
        let bytes = if head & 8 != 0 {
            let (word, count) = (input.u32(), input.u16() & 0x3ff);
            let step = input.u8();
            (0..u32::from(count))
                .flat_map(|i| word.wrapping_add(i.wrapping_mul(step.into())).to_le_bytes())
                .collect()
        } else {
            let count = usize::from(head >> 4) + 1;
            input.bytes(count)
        };
        list.last_mut().expect("one was pushed").push((offset, bytes));
    }
    for (kind, list) in overlays {
        if !list.is_empty() {
            device.set_overlays(kind, list);
        }
    }
    let registers = device.registers(device.window());
    let driver = Controller::start(
        "nvme0".into(),
        registers,
        bus.dma(),
        device.clock(),
        nvme::Config::default(),
    );
    if let Ok(mut driver) = driver {
        judge(&mut driver);
        drop(driver);
    }
    device.check();
    assert_eq!(bus.live(), 0, "memory left behind");
}

fn judge<M: hal::mmio::Mmio, C: hal::clock::Clock>(driver: &mut Controller<M, C>) {
    let info = driver.info().clone();
    let most = nvme::Config::default().max_transfer_cap;
    assert!((4096..=most).contains(&info.max_transfer), "{info:?}");
    assert!(info.mdts.is_none_or(|mdts| mdts >= info.max_transfer));
    assert!(info.shutdown_timeout.as_secs() <= 60);
    for text in [&info.model, &info.serial, &info.firmware] {
        assert!(text.chars().all(|c| c.is_ascii_graphic() || c == ' '), "{text:?}");
    }
    let Ok(namespaces) = driver.namespaces() else { return };
    assert!(namespaces.len() <= 4096);
    assert!(namespaces.is_sorted_by(|a, b| a.id < b.id), "ids in ascending order");
    for namespace in &namespaces {
        assert!(namespace.id >= 1 && namespace.id <= info.namespace_limit);
        assert!(namespace.blocks > 0 && namespace.block_size.is_power_of_two() && namespace.block_size >= 512);
        let bytes = namespace.blocks.checked_mul(namespace.block_size.into());
        assert_eq!(bytes, Some(namespace.bytes()));
        if namespace.supported().is_ok() {
            assert_eq!((namespace.metadata, namespace.protection), (None, 0));
        }
    }
}

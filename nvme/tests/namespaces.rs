//! Which namespaces there are, and which of them can be used.

mod common;

use common::Machine;
use nvme::spec::{AdminOpcode, Capabilities, CommandSet, Version};
use nvme::{Error, MetadataPlacement, Status};
use nvme_emulator::fault::{Fault, Rule};
use nvme_emulator::{Config, NamespaceConfig, NullBackend};

fn namespace(id: u32) -> NamespaceConfig {
    NamespaceConfig::new(id, 1000, 4096, NullBackend)
}

fn ids(machine: &Machine) -> Result<Vec<u32>, Error> {
    Ok(machine
        .start()?
        .namespaces()?
        .iter()
        .map(|namespace| namespace.id)
        .collect())
}

#[test]
fn ids_with_gaps() {
    let machine = Machine::new(Config::default(), [3, 7, 256].map(namespace));
    assert_eq!(ids(&machine), Ok(vec![3, 7, 256]));
    machine.assert_no_mistake();
}

#[test]
fn none_at_all() {
    assert_eq!(ids(&Machine::new(Config::default(), [])), Ok(vec![]));
}

/// Thousands of identify commands take Miri an hour, and are no different from the few of the other tests.
#[test]
#[cfg_attr(miri, ignore)]
fn lists_of_more_than_one_page() {
    for count in [1023, 1024, 1025, 2048, 2500] {
        let config = Config {
            namespace_limit: 10_000,
            ..Config::default()
        };
        let machine = Machine::new(config, (1..=count).map(|id| namespace(id * 3)));
        assert_eq!(ids(&machine).unwrap(), (1..=count).map(|id| id * 3).collect::<Vec<_>>());
        machine.assert_no_mistake();
    }
}

#[test]
fn controllers_without_the_list() {
    let config = Config {
        version: Version::new(1, 0, 0),
        namespace_limit: 12,
        ..Config::default()
    };
    let machine = Machine::new(config, [2, 9].map(namespace));
    assert_eq!(ids(&machine), Ok(vec![2, 9]));

    // One that claims 1.2 and refuses the list.
    let config = Config {
        version: Version::new(1, 2, 0),
        namespace_limit: 12,
        ..Config::default()
    };
    let machine = Machine::new(config, [2, 9].map(namespace));
    machine.add(Rule {
        skip: 1,
        ..Rule::next(0, Fault::Status(Status::INVALID_FIELD.do_not_retry()))
    });
    assert_eq!(ids(&machine), Ok(vec![2, 9]));
    machine.assert_no_mistake();
}

#[test]
fn a_limit_beyond_reason_is_no_endless_loop() {
    let config = Config {
        version: Version::new(1, 0, 0),
        namespace_limit: u32::MAX,
        ..Config::default()
    };
    let machine = Machine::new(config, []);
    assert_eq!(
        ids(&machine).unwrap_err().to_string(),
        "nvme0: more than 4096 namespaces is not supported"
    );

    // A device whose list never ends: each page is full and ascending.
    let machine = Machine::new(
        Config {
            namespace_limit: u32::MAX,
            ..Config::default()
        },
        (1..=5000).map(namespace),
    );
    assert!(matches!(ids(&machine), Err(Error::Unsupported { .. })));
}

#[test]
fn a_list_out_of_order_is_told() {
    for list in [[2u32, 2], [5, 4], [1, 300]] {
        let machine = Machine::new(Config::default(), [namespace(1)]);
        let bytes: Vec<u8> = list.iter().flat_map(|id| id.to_le_bytes()).collect();
        machine.add(Rule {
            skip: 1,
            ..Rule::next(0, Fault::Data { offset: 0, bytes })
        });
        let error = ids(&machine).unwrap_err().to_string();
        let expected = format!(
            "nvme0: Identify returned the impossible value {:#x} for the active namespace ID list",
            list[1]
        );
        assert_eq!(error, expected);
    }
}

#[test]
fn formats_with_metadata_or_protection_are_refused_by_name_and_others_are_not() {
    let separate = NamespaceConfig {
        metadata: 8,
        ..namespace(2)
    };
    let extended = NamespaceConfig {
        metadata: 64,
        extended: true,
        ..namespace(3)
    };
    let protected = NamespaceConfig {
        metadata: 8,
        protection: 1,
        ..namespace(4)
    };
    let odd = NamespaceConfig {
        protection: 2,
        ..namespace(5)
    };
    let read_only = NamespaceConfig {
        read_only: true,
        ..namespace(6)
    };
    let machine = Machine::new(
        Config::default(),
        [namespace(1), separate, extended, protected, odd, read_only],
    );
    let found = machine.start().unwrap().namespaces().unwrap();
    let reasons: Vec<_> = found
        .iter()
        .map(|namespace| namespace.supported().err().map(|error| error.to_string()))
        .collect();
    assert_eq!(
        reasons,
        [
            None,
            Some("nvme0: namespace 2 with 8 bytes of metadata per block, in a separate buffer is not supported".into()),
            Some(
                "nvme0: namespace 3 with 64 bytes of metadata per block, at the end of each block is not supported"
                    .into()
            ),
            Some("nvme0: namespace 4 with 8 bytes of metadata per block, in a separate buffer is not supported".into()),
            Some("nvme0: namespace 5 with protection information of type 2 is not supported".into()),
            None,
        ]
    );
    assert_eq!(found[2].metadata.unwrap().placement, MetadataPlacement::Extended);
    assert!(found[5].read_only && !found[0].read_only);
}

#[test]
fn impossible_namespaces_are_told() {
    let nsze = |value: u64| (0, value.to_le_bytes().to_vec());
    let lbads = |shift: u8| (130, vec![shift]);
    for ((offset, bytes), expected) in [
        (nsze(0), "0x0 for NSZE of namespace 1"),
        (nsze(u64::MAX), "0xffffffffffffffff for NSZE of namespace 1"),
        (nsze(1 << 52), "0x10000000000000 for NSZE of namespace 1"),
        (lbads(0), "0x0 for LBADS of namespace 1"),
        (lbads(8), "0x8 for LBADS of namespace 1"),
        (lbads(17), "0x11 for LBADS of namespace 1"),
        (lbads(63), "0x3f for LBADS of namespace 1"),
        (lbads(255), "0xff for LBADS of namespace 1"),
        ((26, vec![1]), "0x1 for FLBAS of namespace 1"),
        ((29, vec![7]), "0x7 for DPS of namespace 1"),
    ] {
        let machine = Machine::new(Config::default(), [namespace(1)]);
        // After the controller and the list.
        let rule = Rule::every(0, AdminOpcode::IDENTIFY.0, Fault::Data { offset, bytes });
        machine.add(Rule { skip: 2, ..rule });
        let error = ids(&machine).unwrap_err().to_string();
        assert_eq!(
            error,
            format!("nvme0: Identify returned the impossible value {expected}")
        );
    }
}

#[test]
fn zoned_namespaces_are_read_as_others_and_refused_for_random_writes_by_name() {
    let mut zoned = namespace(3);
    zoned.command_set = CommandSet::ZONED;
    let mut keys = namespace(4);
    keys.command_set = CommandSet::KEY_VALUE;
    let mut protected = namespace(9);
    protected.read_only = true;
    let machine = Machine::new(Config::default(), [namespace(2), zoned, keys, protected]);
    let upper = machine.device().read32(4) | (Capabilities::IO_COMMAND_SETS.bits() >> 32) as u32;
    machine.device().set_register(4, upper);
    let mut driver = machine.start().unwrap();
    let namespaces = driver.namespaces().unwrap();
    let told: Vec<_> = namespaces
        .iter()
        .map(|namespace| (namespace.id, namespace.zoned, namespace.supported().is_ok()))
        .collect();
    // The one of keys and values has no blocks.
    assert_eq!(told, [(2, false, true), (3, true, true), (9, false, true)]);
    let refusals: Vec<_> = namespaces
        .iter()
        .map(|namespace| namespace.writable().err().map(|error| error.to_string()))
        .collect();
    assert_eq!(
        refusals,
        [
            None,
            Some("nvme0: random writes to namespace 3, which is zoned, is not supported".into()),
            Some("nvme0: writing to namespace 9, which is write protected, is not supported".into()),
        ]
    );
    machine.assert_no_mistake();
}

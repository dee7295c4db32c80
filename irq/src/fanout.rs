//! Vector fan-out: which CPU runs a job, which queues it gets, and which vector each queue raises.
//!
//! The rule is one: **a queue pair, its vector and the jobs that use it live on one CPU**, so that the hot path needs no lock
//! and no interrupt lands on a CPU that cannot act on it. Each CPU that runs a job has `queues_per_cpu` queue pairs of each
//! controller, and its jobs take these in turn. What a device does not grant takes away queues first and then CPUs:
//!
//! 1. enough of everything: each queue pair has an MSI-X entry of its own; entry 0 is left to the admin queue;
//! 2. as many entries as queues: the first queue shares entry 0 with the admin queue;
//! 3. fewer queues: each CPU has fewer of them, and at last only as many CPUs are used as there are queues;
//! 4. fewer entries than queues: queues of a CPU share entries, and at last only as many CPUs are used as there are entries;
//! 5. a CPU with more entries than vectors: entries share vectors.
//!
//! The last resort is one queue pair and one entry on one CPU. Everything short of 2 is said in a note.

use alloc::format;
use alloc::string::String;
use alloc::vec;
use alloc::vec::Vec;

/// What one controller has to give.
#[derive(Clone, Copy, Debug)]
pub struct Device<'a> {
    /// Its name, for notes.
    pub name: &'a str,
    /// I/O queue pairs granted.
    pub queues: usize,
    /// Entries of its MSI-X table.
    pub entries: usize,
}

/// Which queues share a vector.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sharing {
    /// None, as far as there are entries.
    Queue,
    /// Those of one controller on one CPU.
    Controller,
    /// All on one CPU.
    Cpu,
}

/// What the machine has to give, and what is asked for.
#[derive(Clone, Copy, Debug)]
pub struct Demand<'a> {
    /// The CPU on which each job instance would like to run.
    pub homes: &'a [usize],
    /// CPUs that can be used: the first so many.
    pub cpus: usize,
    /// Queue pairs of each controller that each CPU should have.
    pub queues_per_cpu: usize,
    /// Vectors of each CPU that devices may have.
    pub slots: usize,
    /// Which queues share a vector; None: completions are not found by interrupts.
    pub interrupts: Option<Sharing>,
}

/// One queue pair.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Queue {
    /// Index of the controller.
    pub device: usize,
    /// Index among the controller's I/O queue pairs, from 0.
    pub index: usize,
    /// The CPU that owns it.
    pub cpu: usize,
    /// The MSI-X entry that it raises, if it raises one.
    pub entry: Option<usize>,
    /// The vector of the CPU, counted from the first that devices may have.
    pub slot: Option<usize>,
    /// The job instances that use it.
    pub jobs: Vec<usize>,
}

/// The result: every job on a CPU, with a queue pair of every controller on that CPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// The CPU of each job instance.
    pub homes: Vec<usize>,
    /// All queue pairs, by controller and index.
    pub queues: Vec<Queue>,
    /// What fell short, one sentence each.
    pub notes: Vec<String>,
}

impl Plan {
    /// CPUs up to the last that is used.
    pub fn cpus(&self) -> usize {
        self.homes.iter().max().map_or(0, |last| last + 1)
    }
}

/// Spreads jobs, queues and vectors.
///
/// None when nothing can be spread: no job, no CPU, no controller, or a controller without any queue, or without any MSI-X
/// entry (or a CPU without any vector) where interrupts are needed.
pub fn plan(devices: &[Device<'_>], demand: Demand<'_>) -> Option<Plan> {
    let Demand {
        homes,
        cpus,
        queues_per_cpu,
        slots,
        interrupts,
    } = demand;
    if cpus == 0 || (interrupts.is_some() && slots == 0) {
        return None;
    }
    // Messages do not reach CPUs beyond the first `cpus`.
    let mut homes: Vec<usize> = homes.iter().map(|home| home % cpus).collect();
    let mut wanted = homes.clone();
    wanted.sort_unstable();
    wanted.dedup();
    let mut used = wanted.len().min(devices.iter().map(|d| d.queues).min()?);
    if interrupts.is_some() {
        used = used.min(devices.iter().map(|d| d.entries).min()?);
    }
    if used == 0 {
        return None;
    }
    let mut notes = Vec::new();
    let queues_of = |device: &Device<'_>| queues_per_cpu.min(device.queues / used).max(1);
    let entries_of = |device: &Device<'_>| match interrupts {
        Some(Sharing::Queue) => queues_of(device).min(device.entries / used).max(1),
        Some(_) => 1,
        None => 0,
    };
    let all = wanted.len() * queues_per_cpu;
    for device in devices {
        if device.queues < all {
            notes.push(format!(
                "{} granted {} of {all} queue pairs: jobs share queues",
                device.name, device.queues
            ));
        }
        let vectors = match interrupts {
            Some(Sharing::Queue) => all.min(device.queues),
            Some(_) => wanted.len(),
            None => 0,
        };
        if device.entries < vectors {
            notes.push(format!(
                "{} has {} of {vectors} MSI-X entries: queues share them",
                device.name, device.entries
            ));
        }
    }
    if used < wanted.len() {
        notes.push(format!(
            "the jobs share {used} of the {} CPUs that they were meant for",
            wanted.len()
        ));
    }
    for home in &mut homes {
        let number = wanted.binary_search(home).unwrap_or(0);
        *home = wanted[number % used];
    }
    let mut ordinals = vec![0; used];
    // Each instance: its CPU's place among those used, and its number on that CPU.
    let places: Vec<(usize, usize)> = homes
        .iter()
        .map(|home| {
            let cpu = wanted.binary_search(home).unwrap_or(0);
            ordinals[cpu] += 1;
            (cpu, ordinals[cpu] - 1)
        })
        .collect();

    // How many vectors a CPU needs, over all devices. CPU after CPU gets the next so many, so that no two CPUs use the same
    // vector as long as all fit: then an interrupt on the wrong CPU shows itself.
    let each = match interrupts {
        Some(Sharing::Cpu) => 1,
        _ => devices.iter().map(entries_of).sum(),
    };
    let mut queues = Vec::new();
    // Vectors of each CPU that earlier devices have.
    let mut given = 0;
    for (number, device) in devices.iter().enumerate() {
        let (per_cpu, entries) = (queues_of(device), entries_of(device));
        let first = usize::from(device.entries > used * entries);
        for index in 0..used * per_cpu {
            let (cpu, ordinal) = (index % used, index / used);
            let group = if entries == 0 { 0 } else { ordinal % entries };
            let slot = if interrupts == Some(Sharing::Cpu) {
                0
            } else {
                given + group
            };
            queues.push(Queue {
                device: number,
                index,
                cpu: wanted[cpu],
                entry: interrupts.map(|_| first + group * used + cpu),
                slot: interrupts.map(|_| (cpu * each + slot) % slots),
                jobs: (0..homes.len())
                    .filter(|job| places[*job].0 == cpu && places[*job].1 % per_cpu == ordinal)
                    .collect(),
            });
        }
        given += entries;
    }
    if interrupts.is_some() && each > slots {
        notes.push(format!(
            "a CPU has {slots} vectors for {each} MSI-X entries: entries share vectors"
        ));
    }
    Some(Plan { homes, queues, notes })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashMap;

    const fn device(queues: usize, entries: usize) -> Device<'static> {
        Device {
            name: "nvme0",
            queues,
            entries,
        }
    }

    const HOMES: [usize; 64] = {
        let mut homes = [0; 64];
        let mut home = 0;
        while home < 64 {
            homes[home] = home;
            home += 1;
        }
        homes
    };

    /// A job on each of the first CPUs.
    fn demand(jobs: usize) -> Demand<'static> {
        Demand {
            homes: &HOMES[..jobs],
            cpus: 64,
            queues_per_cpu: 1,
            slots: 190,
            interrupts: Some(Sharing::Queue),
        }
    }

    fn routes(plan: &Plan) -> Vec<(usize, usize, Option<usize>, Option<usize>)> {
        plan.queues.iter().map(|q| (q.device, q.cpu, q.entry, q.slot)).collect()
    }

    #[test]
    fn no_two_cpus_use_the_same_vector_while_all_fit() {
        let plan = plan(&[device(64, 65); 4], demand(32)).unwrap();
        let mut slots: Vec<_> = plan.queues.iter().map(|queue| queue.slot).collect();
        slots.sort();
        slots.dedup();
        assert_eq!(slots.len(), 128);
    }

    #[test]
    fn enough_of_everything() {
        let plan = plan(&[device(64, 65), device(64, 65)], demand(2)).unwrap();
        assert_eq!(plan.homes, [0, 1]);
        let expected = [
            (0, 0, Some(1), Some(0)),
            (0, 1, Some(2), Some(2)),
            (1, 0, Some(1), Some(1)),
            (1, 1, Some(2), Some(3)),
        ];
        assert_eq!(routes(&plan), expected);
        assert!(plan.notes.is_empty());
    }

    #[test]
    fn several_queues_on_a_cpu() {
        let demand = Demand {
            homes: &[0, 0, 0, 3],
            queues_per_cpu: 2,
            ..demand(1)
        };
        let each = plan(&[device(64, 65)], demand).unwrap();
        let expected = [
            (0, 0, Some(1), Some(0)),
            (0, 3, Some(2), Some(2)),
            (0, 0, Some(3), Some(1)),
            (0, 3, Some(4), Some(3)),
        ];
        assert_eq!(routes(&each), expected);
        let jobs: Vec<_> = each.queues.iter().map(|queue| &queue.jobs[..]).collect();
        assert_eq!(jobs, [&[0, 2][..], &[3], &[1], &[]]);
        assert_eq!((each.cpus(), each.notes.len()), (4, 0));

        let demand = |sharing| Demand {
            interrupts: Some(sharing),
            ..demand
        };
        let devices = [device(64, 65); 2];
        let shared = plan(&devices, demand(Sharing::Controller)).unwrap();
        let entries: Vec<_> = shared
            .queues
            .iter()
            .map(|q| (q.entry.unwrap(), q.slot.unwrap()))
            .collect();
        assert_eq!(
            entries,
            [(1, 0), (2, 2), (1, 0), (2, 2), (1, 1), (2, 3), (1, 1), (2, 3)]
        );
        let shared = plan(&devices, demand(Sharing::Cpu)).unwrap();
        let entries: Vec<_> = shared
            .queues
            .iter()
            .map(|q| (q.entry.unwrap(), q.slot.unwrap()))
            .collect();
        assert_eq!(
            entries,
            [(1, 0), (2, 1), (1, 0), (2, 1), (1, 0), (2, 1), (1, 0), (2, 1)]
        );
    }

    #[test]
    fn as_many_entries_as_queues() {
        let plan = plan(&[device(2, 2)], demand(2)).unwrap();
        assert_eq!(routes(&plan), [(0, 0, Some(0), Some(0)), (0, 1, Some(1), Some(1))]);
        assert!(plan.notes.is_empty());
    }

    #[test]
    fn a_single_vector() {
        let one = plan(&[device(64, 1)], demand(4)).unwrap();
        assert_eq!(one.homes, [0; 4]);
        assert_eq!(routes(&one), [(0, 0, Some(0), Some(0))]);
        assert_eq!(
            one.notes,
            [
                "nvme0 has 1 of 4 MSI-X entries: queues share them",
                "the jobs share 1 of the 4 CPUs that they were meant for"
            ]
        );
        let several = Demand {
            queues_per_cpu: 4,
            ..demand(1)
        };
        let several = plan(&[device(64, 1)], several).unwrap();
        assert_eq!(routes(&several), [(0, 0, Some(0), Some(0)); 4]);
        assert_eq!(several.notes, ["nvme0 has 1 of 4 MSI-X entries: queues share them"]);
    }

    #[test]
    fn a_single_queue() {
        let plan = plan(&[device(1, 65)], demand(4)).unwrap();
        assert_eq!(plan.queues.len(), 1);
        assert_eq!(plan.queues[0].jobs, [0, 1, 2, 3]);
        assert_eq!(
            plan.notes,
            [
                "nvme0 granted 1 of 4 queue pairs: jobs share queues",
                "the jobs share 1 of the 4 CPUs that they were meant for"
            ]
        );
    }

    #[test]
    fn polling_needs_no_vectors() {
        let demand = Demand {
            interrupts: None,
            slots: 0,
            ..demand(4)
        };
        let plan = plan(&[device(4, 0)], demand).unwrap();
        assert_eq!(plan.cpus(), 4);
        assert_eq!(routes(&plan)[3], (0, 3, None, None));
    }

    #[test]
    fn vectors_run_out() {
        let plan = plan(&[device(9, 10); 3], Demand { slots: 2, ..demand(1) }).unwrap();
        let slots: Vec<_> = plan.queues.iter().map(|q| q.slot).collect();
        assert_eq!(slots, [Some(0), Some(1), Some(0)]);
        assert_eq!(
            plan.notes,
            ["a CPU has 2 vectors for 3 MSI-X entries: entries share vectors"]
        );
    }

    #[test]
    fn nothing_to_spread() {
        assert_eq!(plan(&[], demand(1)), None);
        assert_eq!(plan(&[device(0, 1)], demand(1)), None);
        assert_eq!(plan(&[device(1, 0)], demand(1)), None);
        assert_eq!(plan(&[device(1, 1)], demand(0)), None);
        assert_eq!(plan(&[device(1, 1)], Demand { slots: 0, ..demand(1) }), None);
        assert_eq!(plan(&[device(1, 1)], Demand { cpus: 0, ..demand(1) }), None);
    }

    proptest! {
        #[test]
        fn every_job_finds_all_it_needs_on_its_cpu(
            given in prop::collection::vec((1usize..70, 1usize..70), 1..5),
            homes in prop::collection::vec(0usize..70, 1..70),
            cpus in 1usize..70, queues_per_cpu in 1usize..5, slots in 1usize..6,
            sharing in prop::sample::select(vec![None, Some(Sharing::Queue), Some(Sharing::Controller), Some(Sharing::Cpu)]),
        ) {
            let devices: Vec<_> = given.iter().map(|(queues, entries)| device(*queues, *entries)).collect();
            let demand = Demand { homes: &homes, cpus, queues_per_cpu, slots, interrupts: sharing };
            let plan = plan(&devices, demand).unwrap();
            prop_assert_eq!(plan.homes.len(), homes.len());
            prop_assert!((1..=cpus).contains(&plan.cpus()));
            for (number, device) in devices.iter().enumerate() {
                let queues: Vec<_> = plan.queues.iter().filter(|q| q.device == number).collect();
                prop_assert!(queues.len() <= device.queues);
                for (index, queue) in queues.iter().enumerate() {
                    prop_assert_eq!(queue.index, index);
                }
                for (job, home) in plan.homes.iter().enumerate() {
                    let mine: Vec<_> = queues.iter().filter(|q| q.jobs.contains(&job)).collect();
                    prop_assert_eq!(mine.len(), 1);
                    prop_assert_eq!(mine[0].cpu, *home);
                }
                // An entry goes to one CPU and one vector.
                let mut targets = HashMap::new();
                for queue in queues {
                    prop_assert_eq!(queue.entry.is_some(), sharing.is_some());
                    if let (Some(entry), Some(slot)) = (queue.entry, queue.slot) {
                        prop_assert!(entry < device.entries && slot < slots);
                        prop_assert_eq!(*targets.entry(entry).or_insert((queue.cpu, slot)), (queue.cpu, slot));
                    }
                }
            }
        }
    }
}

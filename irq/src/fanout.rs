//! Vector fan-out: which CPU runs a job, which queues it gets, and which vector each queue raises.
//!
//! The rule is one: **a queue pair, its vector and the jobs that use it live on one CPU**, so that the hot path needs no lock
//! and no interrupt lands on a CPU that cannot act on it. What a device does not grant takes away CPUs, in this order:
//!
//! 1. enough of everything: each job has a CPU, and on each controller a queue pair and an MSI-X entry of its own; entry 0 is
//!    left to the admin queue;
//! 2. as many entries as queues: the first queue shares entry 0 with the admin queue;
//! 3. fewer entries than queues: only as many CPUs are used as there are entries, and the queues of a CPU share one;
//! 4. fewer queues than jobs: only as many CPUs are used as there are queues, and the jobs of a CPU share one;
//! 5. a CPU with more entries than vectors: entries share vectors.
//!
//! The last resort is one queue pair and one entry on one CPU. Everything short of 1 is said in a note.

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

/// What the machine has to give, and what is asked for.
#[derive(Clone, Copy, Debug)]
pub struct Demand {
    /// Job instances.
    pub jobs: usize,
    /// CPUs that can be used.
    pub cpus: usize,
    /// Vectors of each CPU that devices may have.
    pub slots: usize,
    /// Whether completions are found by interrupts at all.
    pub interrupts: bool,
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
    /// CPUs used, the first ones.
    pub cpus: usize,
    /// All queue pairs, by controller and index.
    pub queues: Vec<Queue>,
    /// What fell short, one sentence each.
    pub notes: Vec<String>,
}

impl Plan {
    /// The CPU of a job instance.
    pub const fn cpu_of(&self, job: usize) -> usize {
        job % self.cpus
    }
}

/// Spreads jobs, queues and vectors.
///
/// None when nothing can be spread: no job, no CPU, no controller, or a controller without any queue, or without any MSI-X
/// entry (or a CPU without any vector) where interrupts are needed.
pub fn plan(devices: &[Device<'_>], demand: Demand) -> Option<Plan> {
    let Demand {
        jobs,
        cpus,
        slots,
        interrupts,
    } = demand;
    let queues = devices.iter().map(|d| d.queues).min()?;
    let entries = devices.iter().map(|d| d.entries).min()?;
    let mut used = jobs.min(cpus).min(queues);
    if interrupts {
        used = used.min(entries).min(if slots == 0 { 0 } else { usize::MAX });
    }
    if used == 0 {
        return None;
    }
    let mut notes = Vec::new();
    for device in devices {
        if device.queues < jobs {
            notes.push(format!(
                "{} granted {} of {jobs} queue pairs: jobs share queues",
                device.name, device.queues
            ));
        }
        if interrupts && device.entries < jobs.min(device.queues) {
            notes.push(format!(
                "{} has {} of {jobs} MSI-X entries: queues share them",
                device.name, device.entries
            ));
        }
    }
    if used < jobs {
        notes.push(format!("{jobs} jobs share {used} of {cpus} CPUs"));
    }

    // How many vectors a CPU needs, over all devices. CPU after CPU gets the next so many, so that no two CPUs use the same
    // vector as long as all fit: then an interrupt on the wrong CPU shows itself.
    let groups_of = |device: &Device<'_>| {
        let count = if device.queues >= jobs { jobs } else { used };
        if device.entries >= count { count } else { used }
    };
    let each: usize = devices.iter().map(|device| groups_of(device).div_ceil(used)).sum();

    let mut plan = Plan {
        cpus: used,
        queues: Vec::new(),
        notes,
    };
    // Vectors given out so far on each CPU.
    let mut given = vec![0; used];
    for (device, Device { queues, entries, .. }) in devices.iter().enumerate() {
        // Each job its queue, or each CPU one for all its jobs.
        let count = if *queues >= jobs { jobs } else { used };
        // Each queue its entry, or each CPU one for all its queues.
        let groups = groups_of(&devices[device]);
        let first = usize::from(*entries > groups);
        for index in 0..count {
            let cpu = index % used;
            let entry = interrupts.then_some(first + index % groups);
            let shared = plan
                .queues
                .iter()
                .find(|q: &&Queue| q.device == device && q.entry == entry);
            let slot = interrupts.then(|| match shared {
                Some(queue) => queue.slot.unwrap_or(0),
                None => {
                    given[cpu] += 1;
                    (cpu * each + given[cpu] - 1) % slots
                }
            });
            let jobs = if count == jobs {
                vec![index]
            } else {
                (index..jobs).step_by(used).collect()
            };
            plan.queues.push(Queue {
                device,
                index,
                cpu,
                entry,
                slot,
                jobs,
            });
        }
    }
    for (cpu, given) in given.iter().enumerate().filter(|(_, given)| **given > slots) {
        plan.notes.push(format!(
            "CPU {cpu} has {slots} vectors for {given} MSI-X entries: entries share vectors"
        ));
    }
    Some(plan)
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

    const fn demand(jobs: usize, cpus: usize) -> Demand {
        Demand {
            jobs,
            cpus,
            slots: 190,
            interrupts: true,
        }
    }

    fn routes(plan: &Plan) -> Vec<(usize, usize, Option<usize>, Option<usize>)> {
        plan.queues.iter().map(|q| (q.device, q.cpu, q.entry, q.slot)).collect()
    }

    #[test]
    fn no_two_cpus_use_the_same_vector_while_all_fit() {
        let plan = plan(&[device(64, 65); 4], demand(32, 32)).unwrap();
        let mut slots: Vec<_> = plan.queues.iter().map(|queue| queue.slot).collect();
        slots.sort();
        slots.dedup();
        assert_eq!(slots.len(), 128);
    }

    #[test]
    fn enough_of_everything() {
        let plan = plan(&[device(64, 65), device(64, 65)], demand(2, 4)).unwrap();
        assert_eq!(plan.cpus, 2);
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
    fn as_many_entries_as_queues() {
        let plan = plan(&[device(2, 2)], demand(2, 2)).unwrap();
        assert_eq!(routes(&plan), [(0, 0, Some(0), Some(0)), (0, 1, Some(1), Some(1))]);
        assert!(plan.notes.is_empty());
    }

    #[test]
    fn a_single_vector() {
        let plan = plan(&[device(64, 1)], demand(4, 4)).unwrap();
        assert_eq!(plan.cpus, 1);
        assert_eq!(routes(&plan), [(0, 0, Some(0), Some(0)); 4]);
        assert_eq!(
            plan.notes,
            [
                "nvme0 has 1 of 4 MSI-X entries: queues share them",
                "4 jobs share 1 of 4 CPUs"
            ]
        );
    }

    #[test]
    fn a_single_queue() {
        let plan = plan(&[device(1, 65)], demand(4, 4)).unwrap();
        assert_eq!(plan.queues.len(), 1);
        assert_eq!(plan.queues[0].jobs, [0, 1, 2, 3]);
        assert_eq!(
            plan.notes,
            [
                "nvme0 granted 1 of 4 queue pairs: jobs share queues",
                "4 jobs share 1 of 4 CPUs"
            ]
        );
    }

    #[test]
    fn polling_needs_no_vectors() {
        let plan = plan(
            &[device(4, 0)],
            Demand {
                interrupts: false,
                slots: 0,
                ..demand(4, 4)
            },
        )
        .unwrap();
        assert_eq!(plan.cpus, 4);
        assert_eq!(routes(&plan)[3], (0, 3, None, None));
    }

    #[test]
    fn vectors_run_out() {
        let plan = plan(
            &[device(9, 10); 3],
            Demand {
                slots: 2,
                ..demand(1, 1)
            },
        )
        .unwrap();
        let slots: Vec<_> = plan.queues.iter().map(|q| q.slot).collect();
        assert_eq!(slots, [Some(0), Some(1), Some(0)]);
        assert_eq!(
            plan.notes,
            ["CPU 0 has 2 vectors for 3 MSI-X entries: entries share vectors"]
        );
    }

    #[test]
    fn nothing_to_spread() {
        assert_eq!(plan(&[], demand(1, 1)), None);
        assert_eq!(plan(&[device(0, 1)], demand(1, 1)), None);
        assert_eq!(plan(&[device(1, 0)], demand(1, 1)), None);
        assert_eq!(plan(&[device(1, 1)], demand(0, 1)), None);
        assert_eq!(
            plan(
                &[device(1, 1)],
                Demand {
                    slots: 0,
                    ..demand(1, 1)
                }
            ),
            None
        );
    }

    proptest! {
        #[test]
        fn every_job_finds_all_it_needs_on_its_cpu(
            given in prop::collection::vec((1usize..70, 1usize..70), 1..5),
            jobs in 1usize..70, cpus in 1usize..70, slots in 1usize..6, interrupts: bool,
        ) {
            let devices: Vec<_> = given.iter().map(|(queues, entries)| device(*queues, *entries)).collect();
            let plan = plan(&devices, Demand { jobs, cpus, slots, interrupts }).unwrap();
            prop_assert!((1..=cpus).contains(&plan.cpus));
            for (number, device) in devices.iter().enumerate() {
                let queues: Vec<_> = plan.queues.iter().filter(|q| q.device == number).collect();
                prop_assert!(queues.len() <= device.queues);
                for job in 0..jobs {
                    let mine: Vec<_> = queues.iter().filter(|q| q.jobs.contains(&job)).collect();
                    prop_assert_eq!(mine.len(), 1);
                    prop_assert_eq!(mine[0].cpu, plan.cpu_of(job));
                }
                // An entry goes to one CPU and one vector.
                let mut targets = HashMap::new();
                for queue in queues {
                    prop_assert_eq!(queue.entry.is_some(), interrupts);
                    if let (Some(entry), Some(slot)) = (queue.entry, queue.slot) {
                        prop_assert!(entry < device.entries && slot < slots);
                        prop_assert_eq!(*targets.entry(entry).or_insert((queue.cpu, slot)), (queue.cpu, slot));
                    }
                }
            }
        }
    }
}

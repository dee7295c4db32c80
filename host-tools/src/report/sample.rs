//! Made-up runs for tests: figures that no machine measured, but one could.

use vmm_glue::run::{Launcher, LauncherDrive};
use workload::job::{JobSet, JobSpec, Load, RunSpec, Size, Verify, Wait};
use workload::latency::{Histogram, Summary};
use workload::report::{
    Clock, Controller, Cpu, Direction, ErrorCount, ErrorLogEntry, Health, Job, Machine, Miscompare, Namespace, Queue,
    Recovery, Report, SCHEMA,
};

use crate::report::Run;

/// Two jobs of a mixed load on two controllers, with all that can go wrong.
pub fn run() -> Run {
    Run {
        report: report(),
        launcher: Some(Launcher {
            name: "qemu".to_string(),
            version: "10.0.2".to_string(),
            accelerator: "tcg".to_string(),
            accelerator_reason: Some(
                "KVM is here but runs 1.3 M instructions/s: it emulates guests; using TCG".to_string(),
            ),
            host_kernel: "6.12.0".to_string(),
            vcpus: 2,
            memory_bytes: 256 << 20,
            drives: vec![
                LauncherDrive {
                    drive: "null:8589934592".to_string(),
                    bytes: 8 << 30,
                    read_only: false,
                },
                LauncherDrive {
                    drive: "disk.img".to_string(),
                    bytes: 64 << 20,
                    read_only: true,
                },
            ],
            command: vec!["qemu-system-x86_64".to_string(), "-nodefaults".to_string()],
            started_ms: 1_796_098_234_500,
            wall_ns: 5_432_100_000,
            guest_text: vec!["doorpost 0.1.0: 2 CPUs".to_string()],
        }),
    }
}

/// One job of random reads, all well, as read from a serial line.
pub fn quiet() -> Run {
    let mut report = report();
    report.controllers.truncate(1);
    report.controllers[0].namespaces.truncate(1);
    report.queues.truncate(1);
    report.cpus.truncate(1);
    report.jobs.truncate(1);
    report.notes.clear();
    report.machine.clock.monotonic = true;
    report.queues[0].missed = 0;
    (report.cpus[0].wrong_cpu, report.cpus[0].unexpected) = (0, 0);
    let spec = &mut report.arguments.jobs[0];
    (spec.rw, spec.verify, spec.numjobs) = (Load::RandRead, Verify::None, 1);
    report.arguments.run = RunSpec::default();
    let job = &mut report.jobs[0];
    job.wait = Wait::Interrupt;
    job.write = Direction::default();
    (job.errors, job.verified_blocks, job.miscompares, job.first_miscompare) = (Vec::new(), 0, 0, None);
    Run { report, launcher: None }
}

/// The guest's half of [`run`].
pub fn report() -> Report {
    Report {
        schema: SCHEMA,
        arguments: JobSet {
            run: RunSpec {
                allow_write: true,
                ..RunSpec::default()
            },
            jobs: vec![JobSpec {
                name: "mixed".to_string(),
                rw: Load::RandReadWrite,
                iodepth: 32,
                numjobs: 2,
                runtime_us: 5_000_000,
                ramp_time_us: 500_000,
                time_based: true,
                size: Size::Percent(100),
                rwmixread: 70,
                verify: Verify::Pattern,
                ..JobSpec::default()
            }],
        },
        machine: Machine {
            architecture: "x86_64".to_string(),
            hypervisor: "TCGTCGTCGTCG".to_string(),
            cpus: 2,
            memory_bytes: 255 << 20,
            interrupt_controller: "x2apic".to_string(),
            clock: Clock {
                source: "TSC, measured against the ACPI timer".to_string(),
                hertz: 2_100_123_456,
                invariant: false,
                monotonic: false,
                worst_step_back_ns: 1500,
            },
            boot_ns: 61_234_567,
        },
        controllers: (0..2).map(controller).collect(),
        queues: (0..2).map(queue).collect(),
        cpus: (0..2).map(cpu).collect(),
        jobs: (0..2).map(job).collect(),
        notes: vec!["nvme1 grants 1 of 2 queue pairs: job 1 shares queue 1".to_string()],
    }
}

fn controller(number: u32) -> Controller {
    Controller {
        name: format!("nvme{number}"),
        address: format!("0000:00:0{}.0", number + 2),
        pci_id: (0x1b36, 0x0010),
        model: "QEMU NVMe Ctrl                          ".to_string(),
        serial: format!("doorpost{number}           "),
        firmware: "10.0.2  ".to_string(),
        version: "1.4.0".to_string(),
        vectors: 65,
        queues_wanted: 2,
        queues_granted: 2 - number,
        max_transfer_bytes: 512 << 10,
        doorbell_stride: 4,
        namespaces: vec![
            Namespace {
                name: format!("nvme{number}n1"),
                id: 1,
                blocks: 16_777_216,
                block_size: 512,
                read_only: number == 1,
                refused: None,
            },
            Namespace {
                name: format!("nvme{number}n2"),
                id: 2,
                blocks: 0,
                block_size: 512,
                read_only: false,
                refused: Some("it has metadata".to_string()),
            },
        ],
        write_cache: number == 0,
        shadow_doorbells: number == 1,
        recovery: if number == 0 {
            Recovery::default()
        } else {
            Recovery {
                timeouts: 3,
                aborts: 3,
                resets: 1,
                reissued: 2,
            }
        },
        events: if number == 0 {
            vec![]
        } else {
            vec!["temperature threshold".to_string()]
        },
        health: (number == 1).then(|| Health {
            warnings: vec!["temperature".to_string()],
            temperature_k: 345,
            spare_percent: 90,
            used_percent: 4,
            host_reads: 1_000,
            host_writes: 2_000,
            power_on_hours: 77,
            unsafe_shutdowns: 1,
            media_errors: 5,
        }),
        error_log: if number == 0 {
            vec![]
        } else {
            vec![ErrorLogEntry {
                number: 12,
                queue: 1,
                status: "Unrecovered Read Error".to_string(),
                namespace: 1,
                lba: 1024,
            }]
        },
    }
}

fn queue(number: u32) -> Queue {
    Queue {
        controller: format!("nvme{number}"),
        id: 1,
        entries: 64,
        cpu: number,
        cpu_hardware_id: number * 2,
        msix_entry: (number == 0).then_some(1),
        vector: (number == 0).then_some(0x41),
        jobs: vec![number],
        interrupts: 60_000,
        spurious: 12,
        missed: 1 - u64::from(number),
        submissions: 61_694,
        completions: 61_694,
        sq_doorbells: 20_001,
        cq_doorbells: 60_012,
    }
}

fn cpu(number: u32) -> Cpu {
    Cpu {
        cpu: number,
        hardware_id: number * 2,
        interrupts: 60_000 - 1000 * u64::from(number),
        wrong_cpu: u64::from(1 - number),
        unexpected: 2 * u64::from(1 - number),
        eois: 60_051,
        ticks: 50,
        halts: 0,
        empty_polls: 123_456,
        pending_hits: 0,
        pending_late: 0,
        pending_look_ns: 0,
        poll_length_ns: 0,
        halted_ns: 0,
        polling_ns: 1_250_000_000,
    }
}

fn job(index: u32) -> Job {
    Job {
        job: 0,
        index,
        cpu: index,
        wait: Wait::Halt,
        files: vec!["nvme0n1".to_string(), "nvme1n1".to_string()],
        area_bytes: vec![8 << 30, 8 << 30],
        runtime_ns: 5_001_000_000 + u64::from(index) * 1_000_000,
        read: direction(43_000 + u64::from(index)),
        write: direction(18_000),
        depths: [1, 1, 2, 4, 8, 60_984, 0],
        submit_batches: [0, 20_001, 0, 0, 0, 0, 0],
        complete_batches: [123_456, 60_012, 10, 1, 0, 0, 0],
        errors: if index == 1 {
            vec![ErrorCount {
                namespace: "nvme1n1".to_string(),
                status: "Namespace is Write Protected".to_string(),
                code: 0x0020,
                count: 3,
            }]
        } else {
            Vec::new()
        },
        verified_blocks: 344_000,
        miscompares: u64::from(index == 0),
        first_miscompare: (index == 0).then(|| Miscompare {
            namespace: "nvme0n1".to_string(),
            lba: 4711,
            offset: 4711 * 512 + 8,
            expected: 0x599e_d017_fb08_fc85,
            found: 0,
        }),
    }
}

/// Latencies that rise from 60 µs to some milliseconds.
fn direction(ios: u64) -> Direction {
    let (mut slat, mut clat, mut lat) = (Histogram::new(), Histogram::new(), Histogram::new());
    let mut record = |submission: u64, completion: u64, times: u64| {
        slat.record(submission, times);
        clat.record(completion, times);
        lat.record(submission + completion, times);
    };
    record(900, 59_000, ios - ios / 2 - ios / 3 - 1);
    record(1_200, 81_000, ios / 2);
    record(2_300, 130_000, ios / 3);
    record(9_000, 4_800_000, 1);
    let rate = |value: u64| {
        let mut summary = Summary::new();
        for i in 0..10 {
            summary.record(value + i * 10, 1);
        }
        summary
    };
    Direction {
        ios,
        bytes: ios * 4096,
        slat: slat.report(),
        clat: clat.report(),
        lat: lat.report(),
        bw_kib: rate(ios * 4 / 5),
        iops: rate(ios / 5),
    }
}

//! A run, from the job to the report: controllers, plan, queues, jobs, and what came of it.

use alloc::boxed::Box;
use alloc::format;
use alloc::string::{String, ToString};
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::Ordering::Acquire;

use hal::clock::Clock;
use hal::dma::Dma;
use irq::fanout::{self, Demand, Device, Plan, Sharing};
use nvme::spec::{ErrorEntry, SmartLog};
use nvme::{Command, Prps};
use workload::frame::Frame;
use workload::job::{JobSet, JobSpec, Size, Vectors};
use workload::offsets::{Offsets, Random};
use workload::report::{self, Failure, FailureKind, Report};

use crate::arch::{self, DmaMemory, MachineClock};
use crate::discover::{self, Attached};
use crate::engine::job::{File, Io, Job, fill};
use crate::engine::{Engine, EngineQueue, Proof, RUN, run_failure};
use crate::machine::Machine;
use crate::{cpu, outbox, progress, skew, summary};

/// Entries of a controller's error log that go into the report, the newest.
const ERROR_LOG: usize = 8;
/// The smallest and the largest queue that is made, in entries: no more commands than that have identifiers.
const MIN_ENTRIES: u32 = 32;
const MAX_ENTRIES: u32 = 4096;

/// Does what the job set says, and sends the report.
///
/// # Errors
/// Why there is no report.
pub fn run(machine: &Machine, set: &JobSet) -> Result<(), Failure> {
    let dma = Dma::new(DmaMemory);
    let mut instances = instances(set, machine.cpus.len())?;
    let attached = discover::controllers(machine, &dma, set, queues_wanted(set, &instances))?;
    if attached.is_empty() {
        return Err(usage(match machine.pci.is_empty() {
            true => "the machine has no PCI configuration space in memory (MCFG); use one that has (QEMU: -M q35)",
            false => "no NVMe controller found on PCI; give the guest a drive",
        }));
    }
    let targets = targets(&attached)?;
    let parts = set
        .jobs
        .iter()
        .map(|job| parts(&attached, &targets, job))
        .collect::<Result<Vec<_>, _>>()?;
    let mut plan = plan(machine, &attached, &targets, &parts, set, &instances)?;
    for (instance, home) in instances.iter_mut().zip(&plan.homes) {
        instance.cpu = *home;
    }
    route(&attached, &plan)?;
    let engines = engines(&attached, &targets, &parts, &mut plan, set, &instances, &dma)?;

    let boot_ns = MachineClock
        .rate()
        .nanoseconds(MachineClock.ticks().wrapping_sub(machine.entered_at));
    let engines = start(engines);
    if let Some(failure) = engines.iter().find_map(|engine| engine.failure.clone()) {
        // Commands may still be in flight: their memory stays with the device.
        core::mem::forget(engines);
        return Err(failure);
    }
    let report = Report {
        schema: report::SCHEMA,
        arguments: set.clone(),
        machine: report::Machine {
            architecture: arch::NAME.to_string(),
            hypervisor: machine.hypervisor.clone(),
            cpus: machine.cpus.len() as u32,
            memory_bytes: machine.memory_bytes,
            interrupt_controller: arch::INTERRUPT_CONTROLLER.to_string(),
            clock: skew::report(machine),
            boot_ns,
        },
        controllers: attached.iter().map(controller_report).collect(),
        queues: engines
            .iter()
            .enumerate()
            .flat_map(|(cpu, engine)| queue_reports(machine, cpu, engine))
            .collect(),
        cpus: engines
            .iter()
            .enumerate()
            .map(|(cpu, engine)| cpu_report(machine, cpu, engine))
            .collect(),
        jobs: job_reports(&engines, set),
        notes: plan.notes,
    };
    // The drive is told to come to rest before anybody is told that all went well: queues first, then the controller.
    for queue in engines.into_iter().flat_map(|engine| engine.release()) {
        let deleted = queue.0.lock().delete_queue_pair(queue.1);
        if let Err(error) = deleted {
            log::warn!("{error}");
        }
    }
    for attached in &attached {
        attached
            .shared
            .lock()
            .shutdown()
            .map_err(|error| run_failure(error.to_string()))?;
    }
    summary::print(&report);
    outbox::send(&Frame::Report(Box::new(report)));
    Ok(())
}

fn usage(message: impl Into<String>) -> Failure {
    Failure {
        kind: FailureKind::Usage,
        message: message.into(),
    }
}

/// One copy of a job.
struct Instance {
    /// Its job's place in the set, and that job's phase.
    job: usize,
    phase: usize,
    /// Its number among the copies of that job.
    copy: usize,
    /// The CPU on which it runs.
    cpu: usize,
}

/// All copies of all jobs, each with the CPU that it would like: in turn over those that its job allows, so that the copies
/// that run at the same time are spread evenly.
fn instances(set: &JobSet, cpus: usize) -> Result<Vec<Instance>, Failure> {
    let all: Vec<u16> = (0..cpus as u16).collect();
    let mut instances = Vec::new();
    for (phase, jobs) in set.phases().into_iter().enumerate() {
        let mut turn = 0;
        for job in jobs {
            let spec = &set.jobs[job];
            let allowed = if spec.cpus_allowed.is_empty() {
                &all
            } else {
                &spec.cpus_allowed
            };
            if let Some(beyond) = allowed.iter().find(|cpu| usize::from(**cpu) >= cpus) {
                return Err(usage(format!(
                    "job {}: cpus_allowed names CPU {beyond}, and the guest has CPUs 0 to {}; use one of these, or more CPUs",
                    spec.name,
                    cpus - 1
                )));
            }
            for copy in 0..spec.numjobs as usize {
                // A copy stays on its CPU, so that both of fio's policies come to the same: the CPUs in turn.
                let number = if spec.cpus_allowed.is_empty() { turn } else { copy };
                turn += 1;
                let cpu = usize::from(allowed[number % allowed.len()]);
                instances.push(Instance { job, phase, copy, cpu });
            }
        }
    }
    Ok(instances)
}

/// The queue pairs that each controller is asked for.
fn queues_wanted(set: &JobSet, instances: &[Instance]) -> u16 {
    let mut cpus: Vec<usize> = instances.iter().map(|instance| instance.cpu).collect();
    cpus.sort_unstable();
    cpus.dedup();
    u16::try_from(cpus.len() * set.run.queues_per_cpu as usize).unwrap_or(u16::MAX)
}

/// A namespace that jobs can use.
struct Target {
    name: String,
    /// Index of its controller.
    device: usize,
    id: u32,
    block_size: u32,
    bytes: u64,
    /// Why nothing can be written to it, if so.
    read_only: Option<String>,
}

/// The namespaces that jobs can use.
fn targets(attached: &[Attached]) -> Result<Vec<Target>, Failure> {
    let mut targets = Vec::new();
    let mut refusals = Vec::new();
    for (device, attached) in attached.iter().enumerate() {
        for namespace in &attached.namespaces {
            if let Err(error) = namespace.supported() {
                refusals.push(error.to_string());
                continue;
            }
            targets.push(Target {
                name: format!("{}n{}", attached.name, namespace.id),
                device,
                id: namespace.id,
                block_size: namespace.block_size,
                bytes: namespace.bytes(),
                read_only: namespace.writable().err().map(|error| error.to_string()),
            });
        }
    }
    if targets.is_empty() {
        return Err(run_failure(match refusals.is_empty() {
            true => "no controller has an active namespace".to_string(),
            false => format!("no namespace can be used: {}", refusals.join("; ")),
        }));
    }
    Ok(targets)
}

/// The part of a namespace that a job uses.
struct Part {
    /// Index of the namespace.
    target: usize,
    /// Where the first copy begins, in bytes, and how much later each further one.
    offset: u64,
    increment: u64,
    /// Bytes that each copy covers.
    area: u64,
    /// I/Os of each copy, without a time limit.
    quota: u64,
}

/// The namespaces that a job uses, and how much of each.
fn parts(attached: &[Attached], targets: &[Target], job: &JobSpec) -> Result<Vec<Part>, Failure> {
    if let Some(missing) = job
        .files()
        .find(|name| targets.iter().all(|target| target.name != *name))
    {
        let names: Vec<&str> = targets.iter().map(|target| target.name.as_str()).collect();
        return Err(usage(format!(
            "job {}: filename: there is no namespace {missing} to use; there is {}",
            job.name,
            names.join(", ")
        )));
    }
    targets
        .iter()
        .enumerate()
        .filter(|(_, target)| job.uses(&target.name))
        .map(|(number, target)| part(&attached[target.device], number, target, job))
        .collect()
}

fn part(attached: &Attached, number: usize, target: &Target, job: &JobSpec) -> Result<Part, Failure> {
    let name = &target.name;
    let block_size = u64::from(target.block_size);
    if job.rw.writes()
        && let Some(error) = &target.read_only
    {
        return Err(usage(format!("{name}: {error}; rw={} writes: use a read job", job.rw)));
    }
    for (option, bytes) in [("bs", job.bs), ("blockalign", job.blockalign)] {
        if !bytes.is_multiple_of(block_size) {
            return Err(usage(format!(
                "{option}={bytes} is not a multiple of the block size of {name}, {block_size} bytes; use a multiple of that"
            )));
        }
    }
    let most = attached.info.max_transfer as u64;
    if job.bs > most {
        return Err(usage(format!(
            "bs={} is more than one command of {} can transfer, {most} bytes; use a smaller bs",
            job.bs, attached.name
        )));
    }
    if job.bs / block_size > 65_536 {
        return Err(usage(format!(
            "bs={} is more than 65536 blocks of {name}; use a smaller bs",
            job.bs
        )));
    }
    let whole = target.bytes;
    // A share begins where an I/O can; bytes are meant as they are.
    let place = |option: &str, size: Size| match size {
        Size::Percent(_) => Ok(size.of(whole) / job.bs * job.bs),
        Size::Bytes(bytes) if bytes.is_multiple_of(block_size) => Ok(bytes),
        Size::Bytes(bytes) => Err(usage(format!(
            "{option}={bytes} is not a multiple of the block size of {name}, {block_size} bytes; use a multiple of that"
        ))),
    };
    let (offset, increment) = (
        place("offset", job.offset)?,
        place("offset_increment", job.offset_increment)?,
    );
    let last = increment.saturating_mul(job.numjobs - 1).saturating_add(offset);
    let area = match job.size {
        Size::Percent(_) => job.size.of(whole).min(whole.saturating_sub(last)),
        Size::Bytes(bytes) if bytes > whole => {
            return Err(usage(format!(
                "size={bytes} is more than {name} holds, {whole} bytes; use a smaller size, or 100%"
            )));
        }
        Size::Bytes(bytes) if bytes > whole.saturating_sub(last) => {
            return Err(usage(format!(
                "size={bytes} from byte {last} on goes beyond the end of {name}, which holds {whole} bytes; use a smaller size or offset"
            )));
        }
        Size::Bytes(bytes) => bytes,
    };
    if area < job.bs {
        return Err(usage(format!(
            "no block of bs={} fits into the {area} bytes of {name} that size={} gives; use a smaller bs or a larger size",
            job.bs, job.size
        )));
    }
    let ios = match job.io_size.of(whole) {
        0 => (area / job.bs).saturating_mul(job.loops),
        bytes => bytes.div_ceil(job.bs),
    };
    Ok(Part {
        target: number,
        offset,
        increment,
        area: area / job.bs * job.bs,
        quota: if job.time_based { u64::MAX } else { ios },
    })
}

/// Spreads the jobs' copies, the queues and the vectors. Controllers without a namespace that a job uses take no part.
fn plan(
    machine: &Machine,
    attached: &[Attached],
    targets: &[Target],
    parts: &[Vec<Part>],
    set: &JobSet,
    instances: &[Instance],
) -> Result<Plan, Failure> {
    let is_used = |device: usize| parts.iter().flatten().any(|part| targets[part.target].device == device);
    let used: Vec<usize> = (0..attached.len()).filter(|device| is_used(*device)).collect();
    let wait = set.run.wait;
    let mut cpus = machine.cpus.len();
    if wait.uses_interrupts() {
        // Messages reach only some ids; CPUs beyond them cannot own a queue.
        cpus = (0..cpus).take_while(|cpu| arch::message(*cpu, 0).is_some()).count();
        if let Some(without) = used.iter().map(|device| &attached[*device]).find(|a| a.entries() == 0) {
            return Err(usage(format!(
                "{} ({}) has no MSI-X, and wait={wait} needs it; use wait=poll",
                without.name, without.function
            )));
        }
    }
    let devices: Vec<Device<'_>> = used
        .iter()
        .map(|device| &attached[*device])
        .map(|a| Device {
            name: &a.name,
            queues: usize::from(a.queues.1),
            entries: a.entries(),
        })
        .collect();
    let homes: Vec<usize> = instances.iter().map(|instance| instance.cpu).collect();
    let demand = Demand {
        homes: &homes,
        cpus,
        queues_per_cpu: set.run.queues_per_cpu as usize,
        slots: arch::SLOTS,
        interrupts: wait.uses_interrupts().then_some(match set.run.vectors {
            Vectors::PerQueue => Sharing::Queue,
            Vectors::PerController => Sharing::Controller,
            Vectors::Shared => Sharing::Cpu,
        }),
    };
    let mut plan = fanout::plan(&devices, demand)
        .ok_or_else(|| run_failure("a controller granted no I/O queue pair".to_string()))?;
    for queue in &mut plan.queues {
        queue.device = used[queue.device];
    }
    Ok(plan)
}

/// Writes the messages into the controllers' tables, after the CPUs know which interrupts are theirs.
fn route(attached: &[Attached], plan: &Plan) -> Result<(), Failure> {
    for (device, attached) in attached.iter().enumerate() {
        let mut messages = Vec::new();
        for queue in plan.queues.iter().filter(|queue| queue.device == device) {
            let (Some(entry), Some(slot)) = (queue.entry, queue.slot) else {
                continue;
            };
            let message = arch::message(queue.cpu, slot).ok_or_else(|| {
                run_failure(format!(
                    "{}: CPU {} cannot be reached by a message",
                    attached.name, queue.cpu
                ))
            })?;
            cpu::all()[queue.cpu].route(slot);
            messages.push((entry, message));
        }
        attached.program(messages);
    }
    Ok(())
}

/// Makes queue pairs, buffers and jobs: one engine for each CPU up to the last that is used.
fn engines(
    attached: &[Attached],
    targets: &[Target],
    parts: &[Vec<Part>],
    plan: &mut Plan,
    set: &JobSet,
    instances: &[Instance],
    dma: &Dma,
) -> Result<Vec<Engine>, Failure> {
    let specs: Vec<Arc<JobSpec>> = set.jobs.iter().cloned().map(Arc::new).collect();
    let cpus = plan.cpus();
    let mut engines = Vec::new();
    for cpu in 0..cpus {
        // Sorted by slot, as the engine keeps them: places in the list stay valid.
        let mut mine: Vec<&fanout::Queue> = plan.queues.iter().filter(|queue| queue.cpu == cpu).collect();
        mine.sort_by_key(|queue| queue.slot);
        let place = |device: usize, instance: usize| {
            mine.iter()
                .position(|queue| queue.device == device && queue.jobs.contains(&instance))
                .ok_or_else(|| run_failure(format!("job {instance} has no queue of {}", attached[device].name)))
        };
        let mut jobs = Vec::new();
        for (number, instance) in instances.iter().enumerate().filter(|(_, instance)| instance.cpu == cpu) {
            let (spec, parts) = (&specs[instance.job], &parts[instance.job]);
            jobs.push(make_job(
                attached,
                targets,
                parts,
                spec,
                (instance, number),
                dma,
                place,
            )?);
        }
        let mut queues = Vec::new();
        for queue in mine {
            let Attached { shared, info, .. } = &attached[queue.device];
            // Jobs of different phases never meet.
            let of_phase = |phase: usize| {
                let mut jobs = queue.jobs.iter().map(|job| &instances[*job]);
                jobs.by_ref()
                    .filter(|instance| instance.phase == phase)
                    .map(|instance| set.jobs[instance.job].iodepth)
                    .sum::<u64>()
            };
            let phases = set.phases().len();
            let depth = u32::try_from((0..phases).map(of_phase).max().unwrap_or(0)).unwrap_or(u32::MAX);
            let entries = depth
                .saturating_add(1)
                .clamp(MIN_ENTRIES, MAX_ENTRIES)
                .next_power_of_two() as u16;
            let vector = queue.entry.map(|entry| entry as u16);
            let pair = shared
                .lock()
                .create_queue_pair(queue.index as u16 + 1, entries, vector)
                .map_err(|error| run_failure(error.to_string()))?;
            if u32::from(pair.capacity()) < depth {
                let (name, id, most) = (&shared.name, pair.id(), pair.capacity());
                plan.notes.push(format!(
                    "{name} queue {id} holds {most} of the {depth} commands asked for"
                ));
            }
            let target = targets.iter().find(|target| target.device == queue.device);
            let target = target.ok_or_else(|| run_failure(format!("no job uses {}", shared.name)))?;
            let proof = Proof::new(dma, target.id, u64::from(target.block_size), info.page_size)
                .map_err(|error| usage(error.to_string()))?;
            let route = queue.entry.zip(queue.slot);
            queues.push(EngineQueue::new(shared.clone(), pair, proof, route, queue.jobs.clone()));
        }
        engines.push(Engine::new(set, queues, jobs, cpu == 0, cpus));
    }
    Ok(engines)
}

/// Makes one copy of a job: its memory, and for each namespace a command for each I/O buffer.
fn make_job(
    attached: &[Attached],
    targets: &[Target],
    parts: &[Part],
    spec: &Arc<JobSpec>,
    (instance, number): (&Instance, usize),
    dma: &Dma,
    place: impl Fn(usize, usize) -> Result<usize, Failure>,
) -> Result<Job, Failure> {
    let no_memory = |what: &dyn core::fmt::Display| usage(format!("{what}; use a smaller iodepth, or more memory"));
    let no_lists = |_| no_memory(&"no memory is left for the lists of I/Os");
    let depth = spec.iodepth as usize;
    let bytes = spec.bs as usize;
    // No buffer crosses a page that it could lie in.
    let apart = if bytes < 4096 {
        bytes.next_power_of_two()
    } else {
        bytes.next_multiple_of(4096)
    };
    let length = depth
        .checked_mul(apart)
        .ok_or_else(|| no_memory(&"the I/O buffers have more bytes than can be counted"))?;
    let mut buffer = dma.allocate(length, 4096).map_err(|error| no_memory(&error))?;
    let mut ios = Vec::new();
    ios.try_reserve_exact(depth).map_err(no_lists)?;
    for io in 0..depth {
        if spec.rw.writes() {
            // Something that compresses no better than random data, and differs from buffer to buffer.
            let place = ((number * depth + io + 1) as u64) << 32;
            fill(&mut buffer, io * apart, place, spec.bs);
        }
        ios.push(Io::new(io * apart));
    }
    let seed = match spec.randrepeat {
        true => spec.randseed,
        false => spec.randseed ^ MachineClock.ticks(),
    };
    let mut files = Vec::new();
    for (order, part) in parts.iter().enumerate() {
        let target = &targets[part.target];
        let page_size = attached[target.device].info.page_size;
        let block_size = u64::from(target.block_size);
        let blocks = (spec.bs / block_size) as u32;
        let mut commands = Vec::new();
        let mut pointers = Vec::new();
        commands.try_reserve_exact(depth).map_err(no_lists)?;
        pointers.try_reserve_exact(depth).map_err(no_lists)?;
        for io in &ios {
            let prps = Prps::new(dma, &buffer, io.offset, bytes, page_size).map_err(|error| no_memory(&error))?;
            commands.push(Command::read(target.id, 0, blocks, prps.data_pointer()));
            pointers.push(prps);
        }
        let random = Random::new(seed, (number * parts.len() + order) as u64);
        let step = if spec.blockalign == 0 { spec.bs } else { spec.blockalign };
        // Blocks follow each other; only random ones begin elsewhere.
        let (step, places) = match spec.rw.is_random() {
            true => (step, (part.area - spec.bs) / step + 1),
            false => (spec.bs, part.area / spec.bs),
        };
        files.push(File {
            name: target.name.clone(),
            id: target.id,
            block_size,
            blocks_per_io: u64::from(blocks),
            step: step / block_size,
            first: (part.offset + part.increment * instance.copy as u64) / block_size,
            area: part.area,
            offsets: match (spec.rw.is_random(), spec.norandommap) {
                (false, _) => Offsets::sequential(places),
                (true, false) => Offsets::mapped(places, random),
                (true, true) => Offsets::free(places, random),
            },
            quota: part.quota,
            left: 0,
            queue: place(target.device, number)?,
            commands,
            _pointers: pointers,
        });
    }
    let who = (instance.job, instance.phase, number);
    Job::new(spec.clone(), who, files, buffer, ios).ok_or_else(|| no_memory(&"no memory is left for the lists of I/Os"))
}

/// Runs an engine on each CPU, the first on this one, and returns them when all are done.
fn start(engines: Vec<Engine>) -> Vec<Engine> {
    let count = engines.len();
    let mut engines = engines.into_iter();
    let first = engines.next();
    for (engine, (index, cpu)) in engines.zip(cpu::all().iter().enumerate().skip(1)) {
        cpu.give(index, Box::new(engine));
    }
    let mut done: Vec<Engine> = Vec::with_capacity(count);
    if let Some(mut engine) = first {
        engine.run();
        done.push(engine);
    }
    // The others' wake-ups and the tick end each halt.
    while RUN.finished.load(Acquire) < count {
        arch::interrupts_off();
        if RUN.finished.load(Acquire) < count {
            arch::halt();
        }
        arch::interrupts_on();
        progress::show(MachineClock.ticks(), false);
    }
    if RUN.began().is_some() {
        arch::mark();
    }
    arch::stop_tick();
    for cpu in &cpu::all()[1..count.max(1)] {
        loop {
            if let Some(engine) = cpu.collect() {
                done.push(*engine);
                break;
            }
            core::hint::spin_loop();
        }
    }
    done
}

fn controller_report(attached: &Attached) -> report::Controller {
    let info = &attached.info;
    let mut controller = attached.shared.lock();
    let events = controller.poll_events().unwrap_or_default();
    let errors = controller.error_log().unwrap_or_default();
    let health = controller.smart_log().ok().map(|log| health(&log));
    // The lock is free again before `recovery` takes it.
    drop(controller);
    let namespace = |namespace: &nvme::Namespace| report::Namespace {
        name: format!("{}n{}", attached.name, namespace.id),
        id: namespace.id,
        blocks: namespace.blocks,
        block_size: namespace.block_size,
        read_only: namespace.read_only,
        refused: namespace.supported().err().map(|error| error.to_string()),
    };
    report::Controller {
        name: attached.name.clone(),
        address: attached.function.to_string(),
        pci_id: attached.function.id,
        model: info.model.clone(),
        serial: info.serial.clone(),
        firmware: info.firmware.clone(),
        version: info.version.to_string(),
        vectors: attached.entries() as u32,
        queues_wanted: u32::from(attached.queues.0),
        queues_granted: u32::from(attached.queues.1),
        max_transfer_bytes: info.max_transfer as u64,
        doorbell_stride: info.capabilities.doorbell_stride() as u32,
        namespaces: attached.namespaces.iter().map(namespace).collect(),
        write_cache: info.volatile_write_cache,
        shadow_doorbells: attached.shadow_doorbells,
        recovery: attached.shared.recovery(),
        events: events.iter().map(ToString::to_string).collect(),
        health,
        error_log: errors.iter().take(ERROR_LOG).map(error_log_entry).collect(),
    }
}

fn health(log: &SmartLog) -> report::Health {
    report::Health {
        warnings: log
            .critical_warning()
            .iter_names()
            .map(|(name, _)| name.to_lowercase())
            .collect(),
        temperature_k: log.temperature.get(),
        spare_percent: log.spare,
        used_percent: log.percentage_used,
        host_reads: log.host_reads.get() as u64,
        host_writes: log.host_writes.get() as u64,
        power_on_hours: log.power_on_hours.get() as u64,
        unsafe_shutdowns: log.unsafe_shutdowns.get() as u64,
        media_errors: log.media_errors.get() as u64,
    }
}

fn error_log_entry(entry: &ErrorEntry) -> report::ErrorLogEntry {
    report::ErrorLogEntry {
        number: entry.count.get(),
        queue: entry.sq_id.get(),
        status: entry.status().to_string(),
        namespace: entry.nsid.get(),
        lba: entry.lba.get(),
    }
}

fn queue_reports(machine: &Machine, cpu: usize, engine: &Engine) -> Vec<report::Queue> {
    let one = |queue: &EngineQueue| {
        let (now, base) = (&queue.end, &queue.base);
        report::Queue {
            controller: queue.shared.name.clone(),
            id: queue.pair.id(),
            entries: u32::from(queue.pair.entries()),
            cpu: cpu as u32,
            cpu_hardware_id: machine.cpus[cpu],
            msix_entry: queue.entry.map(|entry| entry as u32),
            vector: queue.slot.map(arch::vector),
            jobs: queue.jobs.iter().map(|job| *job as u32).collect(),
            interrupts: queue.end_interrupts - queue.base_interrupts,
            spurious: queue.spurious,
            missed: queue.missed,
            submissions: now.submitted - base.submitted,
            completions: now.completed - base.completed,
            sq_doorbells: now.sq_doorbells - base.sq_doorbells,
            cq_doorbells: now.cq_doorbells - base.cq_doorbells,
        }
    };
    engine.queues.iter().map(one).collect()
}

fn cpu_report(machine: &Machine, cpu: usize, engine: &Engine) -> report::Cpu {
    report::Cpu {
        cpu: cpu as u32,
        hardware_id: machine.cpus[cpu],
        ..engine.counts.clone()
    }
}

fn job_reports(engines: &[Engine], set: &JobSet) -> Vec<report::Job> {
    let mut jobs: Vec<report::Job> = engines
        .iter()
        .enumerate()
        .flat_map(|(cpu, engine)| engine.jobs.iter().map(move |job| job.report(cpu, set.run.wait)))
        .collect();
    jobs.sort_by_key(|job| job.index);
    jobs
}

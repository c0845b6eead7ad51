//! The limit test: creates objects of one kind until a call fails, or until a maximum number or time is reached. Then
//! it frees them all and creates one more. Two limits are no objects: posted receives, and the size of a registration.
//! For these it only repeats the call until it fails, or until a maximum number, time or share of memory is reached.
//!
//! Needs no server. Checks that the failed call reports exhausted resources, and that no object remains.
#![forbid(unsafe_code)]

use std::time::{Duration, Instant};

use dat_abi::*;
use serde_json::json;

use crate::common::Common;
use crate::dat::raw::{self, CallResult, Post, Refusal};
use crate::dat::{Ep, Evd, Ia, Memory, Object, Pz};
use crate::failure::{Failure, Result};
use crate::report::Report;
use crate::stop;

/// Maximum time for creating objects of one kind.
const CREATION_TIMEOUT: Duration = Duration::from_secs(20);
/// Default maximum number of objects.
const MAX_OBJECTS: usize = 100_000;
/// A registration has at most the available memory divided by this number, and at most `MAX_LENGTH` bytes.
const MEMORY_DIVISOR: u64 = 4;
const MAX_LENGTH: u64 = 1 << 30;
/// Size in bytes of the first registration.
const FIRST_LENGTH: usize = 4096;
/// First qualifier of service points.
const FIRST_QUAL: u64 = 0x0aff_ab1e;

/// A limit to test: the number of objects of a kind, or of posted receives, or the size of a registration.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Limit {
    Ia,
    Pz,
    Cno,
    Evd,
    Ep,
    Rsp,
    Psp,
    Lmr,
    Rmr,
    PostRecv,
    LmrSize,
}

impl Limit {
    /// All limits, in the order of the test.
    pub(crate) const ALL: [Limit; 11] = [
        Limit::Ia,
        Limit::Pz,
        Limit::Cno,
        Limit::Evd,
        Limit::Ep,
        Limit::Rsp,
        Limit::Psp,
        Limit::Lmr,
        Limit::Rmr,
        Limit::PostRecv,
        Limit::LmrSize,
    ];

    fn name(self) -> &'static str {
        match self {
            Limit::Ia => "limit_ia",
            Limit::Pz => "limit_pz",
            Limit::Cno => "limit_cno",
            Limit::Evd => "limit_evd",
            Limit::Ep => "limit_ep",
            Limit::Rsp => "limit_rsp",
            Limit::Psp => "limit_psp",
            Limit::Lmr => "limit_lmr",
            Limit::Rmr => "limit_rmr",
            Limit::PostRecv => "limit_rpost",
            Limit::LmrSize => "limit_size_lmr",
        }
    }
}

/// Parses names of limits. Without names: all limits.
pub(crate) fn parse(words: &[String]) -> std::result::Result<Vec<Limit>, String> {
    let find = |word: &String| {
        let found = Limit::ALL.into_iter().find(|limit| limit.name().eq_ignore_ascii_case(word));
        found.ok_or_else(|| format!("unknown limit {word}; dapltest -h lists the limits"))
    };
    match words {
        [] => Ok(Limit::ALL.to_vec()),
        words => words.iter().map(find).collect(),
    }
}

/// Objects that exist before the limit is tested.
struct PreexistingObjects {
    ep: Ep,
    memory: Memory,
    dtos: Evd,
    requests: Evd,
    _conn: Evd,
    pz: Pz,
    ia: Ia,
}

impl PreexistingObjects {
    fn new(device: &str) -> CallResult<Self> {
        let ia = Ia::open(device)?;
        let pz = ia.pz()?;
        let conn = ia.evd(8, DAT_EVD_CONNECTION_FLAG)?;
        let dtos = ia.evd(8, DAT_EVD_DTO_FLAG | DAT_EVD_RMR_BIND_FLAG)?;
        let requests = ia.evd(8, DAT_EVD_CR_FLAG)?;
        let memory = Memory::new(&ia, &pz, FIRST_LENGTH)?;
        let ep = ia.ep(&pz, [&dtos, &dtos, &conn], None)?;
        Ok(PreexistingObjects { ep, memory, dtos, requests, _conn: conn, pz, ia })
    }
}

/// Number of objects created (for `LmrSize`: the largest size in bytes), and the error that ended the loop, if any.
struct LimitResult {
    made: usize,
    refusal: Option<Refusal>,
    /// Text after the number in the output.
    remark: String,
}

/// Runs the limit test (`-T L`).
pub(crate) fn run(common: &Common, width: usize, maximum: Option<usize>, limits: &[Limit]) -> Result<Report> {
    let mut report = Report::new("limits", common);
    let mut results = Vec::new();
    for limit in limits {
        stop::check()?;
        let began = Instant::now();
        let found = try_one(common, width, maximum, *limit);
        let name = limit.name();
        if common.debug > 0 {
            eprintln!("dapltest: {name}: {:.3} s", began.elapsed().as_secs_f64());
        }
        match found {
            Err(Failure::Interrupted) => return Err(Failure::Interrupted),
            Err(failure) => {
                report.fail(format!("{name}: {failure}"));
                results.push(json!({"limit": name, "error": failure.to_string()}));
            }
            Ok(found) => {
                let end = found.refusal.map_or("stopped without an error".to_owned(), |refusal| refusal.to_string());
                report.line(format!("{name:<16} {:>8} {}then {end}", found.made, found.remark));
                let code = found.refusal.map(|refusal| refusal.code);
                let words = found.refusal.map(|refusal| raw::words(refusal.code));
                results.push(json!({"limit": name, "made": found.made, "code": code, "refused": words}));
            }
        }
    }
    report.put("width", json!(width));
    report.put("limits", json!(results));
    Ok(report)
}

fn try_one(common: &Common, width: usize, maximum: Option<usize>, limit: Limit) -> Result<LimitResult> {
    let device = common.device.as_str();
    let all_existing: Vec<PreexistingObjects> =
        (0..width).map(|_| PreexistingObjects::new(device)).collect::<CallResult<_>>()?;
    let most = maximum.unwrap_or(MAX_OBJECTS);
    let on = |number: usize| &all_existing[number % all_existing.len()];
    let found = match limit {
        Limit::Ia => exhaust(most, |_| Ia::open(device)),
        Limit::Pz => exhaust(most, |n| on(n).ia.pz()),
        Limit::Cno => exhaust(most, |n| on(n).ia.cno()),
        Limit::Evd => exhaust(most, |n| on(n).ia.evd(8, DAT_EVD_DTO_FLAG)),
        Limit::Ep => exhaust(most, |n| on(n).ia.ep(&on(n).pz, [&on(n).dtos, &on(n).dtos, &on(n)._conn], None)),
        Limit::Psp => exhaust(most, |n| on(n).ia.psp_any(&on(n).requests).map(|(psp, _)| psp)),
        Limit::Rsp => exhaust(most, |n| reserve(on(n), n)),
        Limit::Lmr => exhaust(most, |n| register(on(n))),
        Limit::Rmr => exhaust(most, |n| on(n).pz.rmr()),
        Limit::PostRecv => post_receives(on(0), most),
        Limit::LmrSize => sizes(on(0), maximum.unwrap_or(usize::BITS as usize)),
    }?;
    // A graceful close is refused if any object is left.
    for existing in all_existing {
        let PreexistingObjects { ep, memory, dtos, requests, _conn, pz, ia } = existing;
        ep.free()?;
        drop((memory, dtos, requests, _conn));
        pz.free()?;
        ia.close()?;
    }
    Ok(found)
}

/// Creates objects until a call fails, `most` objects exist or the time is over. Then frees them all, and checks that
/// another object can be created.
fn exhaust<T: Object>(most: usize, make: impl Fn(usize) -> CallResult<T>) -> Result<LimitResult> {
    let (mut made, mut refusal) = (Vec::new(), None);
    let began = Instant::now();
    let mut remark = "";
    while made.len() < most {
        match make(made.len()) {
            Ok(object) => made.push(object),
            Err(answer) => {
                refusal = Some(answer);
                break;
            }
        }
        stop::check()?;
        if began.elapsed() > CREATION_TIMEOUT {
            remark = "within the time limit, ";
            break;
        }
    }
    let count = made.len();
    if let Some(refusal) = refusal {
        check_refusal(refusal, count)?;
    }
    made.into_iter().try_for_each(Object::free)?;
    make(count).map_err(|refusal| Failure::from(refusal).at("creating one more after all were freed"))?.free()?;
    Ok(LimitResult { made: count, refusal, remark: remark.to_owned() })
}

/// Checks that a refusal reports exhausted resources, and that at least one call succeeded before the refusal.
fn check_refusal(refusal: Refusal, made: usize) -> Result {
    let is_fair = match refusal.kind() {
        DAT_INSUFFICIENT_RESOURCES | DAT_QUEUE_FULL | DAT_CONN_QUAL_UNAVAILABLE | DAT_LENGTH_ERROR => true,
        // If an adapter's device or directory cannot be opened another time, `dat_ia_open` returns one of these codes.
        DAT_PROVIDER_NOT_FOUND | DAT_INTERNAL_ERROR => refusal.call == "dat_ia_open",
        _ => false,
    };
    if made > 0 && is_fair { Ok(()) } else { Err(Failure::from(refusal).at(&format!("after {made} successful calls"))) }
}

/// A reserved service point and its endpoint.
struct Reserved {
    rsp: crate::dat::Rsp,
    ep: Ep,
}

impl Object for Reserved {
    fn free(self) -> CallResult {
        self.rsp.free()?;
        self.ep.free()
    }
}

fn reserve(existing: &PreexistingObjects, number: usize) -> CallResult<Reserved> {
    let ep = existing.ia.ep(&existing.pz, [&existing.dtos, &existing.dtos, &existing._conn], None)?;
    let rsp = existing.ia.rsp(FIRST_QUAL + number as u64, &ep, &existing.requests)?;
    Ok(Reserved { rsp, ep })
}

/// An additional registration of the same memory.
struct Region(raw::Registered);

impl Object for Region {
    fn free(self) -> CallResult {
        raw::lmr_free(self.0.lmr)
    }
}

fn register(existing: &PreexistingObjects) -> CallResult<Region> {
    let at = existing.memory.pointer();
    let (ia, pz) = (existing.ia.handle(), existing.pz.handle());
    raw::lmr_create(ia, pz, at, FIRST_LENGTH as u64, DAT_MEM_PRIV_ALL_FLAG).map(Region)
}

/// Posts receives until a post fails, `most` are posted or the time is over. The receives stay posted until the
/// endpoint is freed.
fn post_receives(existing: &PreexistingObjects, most: usize) -> Result<LimitResult> {
    let mut refusal = None;
    let mut made = 0;
    let began = Instant::now();
    while made < most && began.elapsed() < CREATION_TIMEOUT {
        match existing.ep.post(Post::Recv, &mut existing.memory.segments(0, FIRST_LENGTH, 1), made as u64) {
            Ok(()) => made += 1,
            Err(answer) => {
                check_refusal(answer, made)?;
                refusal = Some(answer);
                break;
            }
        }
    }
    // The reset must succeed although receives are posted. It keeps them, because the endpoint is unconnected.
    raw::ep_reset(existing.ep.handle())?;
    Ok(LimitResult { made, refusal, remark: String::new() })
}

/// Registers memory of doubling size, one registration at a time and at most `most` times, until a refusal. The size is
/// at most `MAX_LENGTH`, and at most the available memory divided by `MEMORY_DIVISOR`.
fn sizes(existing: &PreexistingObjects, most: usize) -> Result<LimitResult> {
    let spare = (spare_memory() / MEMORY_DIVISOR).min(MAX_LENGTH);
    let (mut size, mut largest, mut refusal) = (FIRST_LENGTH, 0, None);
    for _ in 0..most {
        if size as u64 > spare {
            break;
        }
        match Memory::new(&existing.ia, &existing.pz, size) {
            Ok(memory) => drop(memory),
            Err(answer) => {
                check_refusal(answer, largest)?;
                refusal = Some(answer);
                break;
            }
        }
        largest = size;
        size *= 2;
        stop::check()?;
    }
    Ok(LimitResult { made: largest, refusal, remark: "bytes in one piece, ".to_owned() })
}

/// Memory in bytes that the kernel can provide without swapping.
fn spare_memory() -> u64 {
    let text = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"));
    let kilobytes = line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
    // If the kernel does not report the amount, assume 64 MiB.
    kilobytes.unwrap_or(64 * 1024) * 1024
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limit_names_are_parsed_without_regard_to_case() {
        let words = |text: &str| text.split(' ').map(str::to_owned).collect::<Vec<_>>();
        assert_eq!(parse(&[]).unwrap(), Limit::ALL);
        assert_eq!(parse(&words("limit_pz LIMIT_SIZE_LMR")).unwrap(), [Limit::Pz, Limit::LmrSize]);
        assert!(parse(&words("limit_pz limit_xyz")).unwrap_err().contains("limit_xyz"));
    }

    #[test]
    fn insufficient_resources_is_a_valid_refusal_of_a_limit_test() {
        let refusal = |kind| Refusal { call: "dat_pz_create", code: DAT_CLASS_ERROR | kind };
        assert!(check_refusal(refusal(DAT_INSUFFICIENT_RESOURCES), 1).is_ok());
        assert_eq!(refusal(DAT_INSUFFICIENT_RESOURCES | DAT_RESOURCE_MEMORY).kind(), DAT_INSUFFICIENT_RESOURCES);
    }

    #[test]
    fn available_memory_of_this_machine_is_read() {
        assert!(spare_memory() > FIRST_LENGTH as u64);
    }
}

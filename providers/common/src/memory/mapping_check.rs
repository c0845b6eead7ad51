//! Is memory of this process there, with the rights that it was registered with? Asked when it is registered; and, by
//! `user_copy`, when it is copied. Also counts the engine's ticks, for answers of other kinds that hold for one tick.
//!
//! For providers that are made in software. Never changes what is in the memory, and never holds a lock.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

use dapl::provider::Region;
use dapl::runtime::mappings::{self, Found, Rights};

/// So much memory is made present when it is registered, which shows its rights as well. For more the list of mappings is
/// read: that takes long, but not longer than what it is registered for.
const MADE_PRESENT: u64 = 4 << 20;

/// May memory of this process be read, all of it, and written if `write`? Asked when it is registered.
///
/// Shared memory is made present however much it is: a file that ends too early, or whose file system has no room for it,
/// would be a signal later.
pub fn is_usable(region: Region, write: bool) -> bool {
    if region.length <= MADE_PRESENT {
        return is_accessible(region, write);
    }
    let found = |shared| mappings::look(region, Rights { read: true, write, shared });
    match found(false) {
        Found::Whole => found(true) != Found::Whole || is_accessible(region, write),
        Found::Missing | Found::Lacking => false,
        Found::Unknown => is_mapped(region),
    }
}

/// Counts the engine's ticks, and says whether they go on: it does something every few milliseconds anyway while somebody
/// polls. The count outlives its sleep, or the first tick after it would be taken for the first one before.
#[derive(Debug, Default)]
pub struct EngineTicks(AtomicU32);

impl EngineTicks {
    /// The engine ticks; also tells its ticks from the clock's.
    const OURS: u32 = 1 << 30;

    /// The engine has ticked, and `goes_on` or sleeps from here on.
    pub fn tick(&self, goes_on: bool) {
        let next = self.0.load(Ordering::Relaxed).wrapping_add(1) & (Self::OURS - 1);
        self.0.store(if goes_on { next | Self::OURS } else { next }, Ordering::Relaxed);
    }

    /// What differs from tick to tick, in 31 bits.
    #[inline]
    fn now(&self) -> u32 {
        let count = self.0.load(Ordering::Relaxed);
        if count & Self::OURS != 0 { count } else { clock() & (Self::OURS - 1) }
    }
}

/// When something was asked about last.
#[derive(Debug, Default)]
pub struct LastCheck(AtomicU32);

impl LastCheck {
    /// Does it still hold, whatever it is? `ask` is called if nobody has done so in this tick.
    #[inline]
    pub fn is_still(&self, ticker: &EngineTicks, ask: impl FnOnce() -> bool) -> bool {
        let now = ticker.now() << 1 | 1; // never 0, which is what nobody has asked about
        self.0.load(Ordering::Relaxed) == now
            || ask() && {
                self.0.store(now, Ordering::Relaxed);
                true
            }
    }
}

/// Ticks of the coarse clock, by milliseconds.
#[inline]
fn clock() -> u32 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: writes the time there.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC_COARSE, &mut now) };
    (now.tv_sec as u32).wrapping_mul(1000).wrapping_add(now.tv_nsec as u32 / 1_000_000)
}

/// May it be touched now, all of it?
pub fn is_accessible(region: Region, write: bool) -> bool {
    if region.length == 0 {
        return true;
    }
    match populate(region, write) {
        0 => true,
        // Not mapped; touching it would be a signal: beyond the end of its file, no room for it, broken memory.
        libc::ENOMEM | libc::EFAULT | libc::EHWPOISON => false,
        libc::EINVAL if can_populate() => match mappings::look(region, Rights { read: true, write, shared: false }) {
            Found::Whole => true, // memory of a device, which cannot be asked so
            Found::Missing | Found::Lacking => false,
            Found::Unknown => is_mapped(region),
        },
        libc::EINVAL => is_mapped(region),
        _ => true, // a passing trouble of the kernel's
    }
}

/// Makes the pages present: 0, or the error's number.
fn populate(Region { address, length }: Region, write: bool) -> i32 {
    let begin = address & !(page() - 1);
    let advice = if write { libc::MADV_POPULATE_WRITE } else { libc::MADV_POPULATE_READ };
    // SAFETY: makes pages present as a read or a write of one byte would do it, and changes nothing in them.
    let done = unsafe { libc::madvise(begin as *mut libc::c_void, (address + length - begin) as usize, advice) };
    if done == 0 { 0 } else { std::io::Error::last_os_error().raw_os_error().unwrap_or(0) }
}

/// Kernels before 5.14 cannot.
fn can_populate() -> bool {
    static CAN: OnceLock<bool> = OnceLock::new();
    *CAN.get_or_init(|| populate(Region { address: (&raw const CAN) as u64, length: 1 }, false) == 0)
}

/// Is it mapped, all of it, with whatever rights? Touches no page.
fn is_mapped(Region { address, length }: Region) -> bool {
    let mut at = address & !(page() - 1);
    let end = address + length;
    let mut resident = [0u8; 1024];
    while at < end {
        let span = (end - at).min(resident.len() as u64 * page());
        // SAFETY: asks about pages, touches none; the answer has one byte for each of at most `resident.len()` pages.
        if unsafe { libc::mincore(at as *mut libc::c_void, span as usize, resident.as_mut_ptr()) } != 0 {
            return false;
        }
        at += span.next_multiple_of(page());
    }
    true
}

fn page() -> u64 {
    rustix::param::page_size() as u64
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd;

    use rustix::fs::MemfdFlags;

    use super::*;

    const PAGE: usize = 4096;

    /// A mapping of eight pages of a file that has `pages`.
    fn mapped(pages: usize) -> (u64, std::os::fd::OwnedFd) {
        let file = rustix::fs::memfd_create("presence", MemfdFlags::CLOEXEC).unwrap();
        rustix::fs::ftruncate(&file, (pages * PAGE) as u64).unwrap();
        let rights = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping at an address of the kernel's choice.
        let at = unsafe { libc::mmap(std::ptr::null_mut(), 8 * PAGE, rights, libc::MAP_SHARED, file.as_raw_fd(), 0) };
        assert_ne!(at, libc::MAP_FAILED);
        (at as u64, file)
    }

    fn protect(at: u64, rights: i32) {
        // SAFETY: a mapping of the test's own, which nobody touches.
        assert_eq!(unsafe { libc::mprotect(at as *mut libc::c_void, PAGE, rights) }, 0);
    }

    #[test]
    fn what_is_there_may_be_touched() {
        let (at, _file) = mapped(8);
        let whole = Region { address: at + 1, length: 8 * PAGE as u64 - 1 };
        assert!(is_accessible(whole, true) && is_accessible(whole, false) && is_mapped(whole));
        assert!(is_accessible(Region { address: 8, length: 0 }, true), "nothing is everywhere");
        assert!(
            !is_accessible(Region { address: 8, length: 1 }, false) && !is_mapped(Region { address: 8, length: 1 })
        );
    }

    #[test]
    fn rights_count() {
        let (at, _file) = mapped(8);
        let two = Region { address: at, length: 2 * PAGE as u64 };
        protect(at + PAGE as u64, libc::PROT_READ);
        assert!(is_accessible(two, false) && !is_accessible(two, true));
        protect(at + PAGE as u64, libc::PROT_NONE);
        assert!(!is_accessible(two, false) && is_mapped(two));
    }

    #[test]
    fn beyond_the_end_of_a_file_is_nothing() {
        let (at, file) = mapped(3);
        let of = |pages: usize| Region { address: at, length: (pages * PAGE) as u64 };
        assert!(is_accessible(of(3), true) && !is_accessible(of(4), true) && !is_accessible(of(4), false));
        assert!(is_usable(of(3), true) && !is_usable(of(4), false));
        rustix::fs::ftruncate(&file, 0).unwrap();
        assert!(!is_accessible(of(1), false));
    }

    #[test]
    fn much_of_a_file_that_is_too_short_is_not_registered() {
        let file = rustix::fs::memfd_create("presence", MemfdFlags::CLOEXEC).unwrap();
        rustix::fs::ftruncate(&file, MADE_PRESENT).unwrap();
        let length = MADE_PRESENT as usize + PAGE;
        // SAFETY: a new mapping at an address of the kernel's choice.
        let at =
            unsafe { libc::mmap(std::ptr::null_mut(), length, libc::PROT_READ, libc::MAP_SHARED, file.as_raw_fd(), 0) };
        assert_ne!(at, libc::MAP_FAILED);
        let region = Region { address: at as u64, length: length as u64 };
        assert!(!is_usable(region, false));
        rustix::fs::ftruncate(&file, length as u64).unwrap();
        assert!(is_usable(region, false) && !is_usable(region, true));
    }

    #[test]
    fn an_answer_holds_for_its_tick_and_no_longer() {
        let (looked, ticker) = (LastCheck::default(), EngineTicks::default());
        let by_clock = || {
            let begin = clock();
            while clock() == begin {
                std::thread::yield_now();
            }
        };
        let by_engine = || ticker.tick(true);
        for later in [&by_clock as &dyn Fn(), &by_engine] {
            later();
            assert!(looked.is_still(&ticker, || true));
            later();
            assert!(!looked.is_still(&ticker, || false));
            assert!(!looked.is_still(&ticker, || false), "a refusal is not remembered");
        }
    }

    #[test]
    fn ticks_differ_from_each_other_and_from_the_clock() {
        let ticker = EngineTicks::default();
        assert!(ticker.now() < EngineTicks::OURS, "it is the clock that counts");
        let mut last = ticker.now();
        for start in [0, EngineTicks::OURS, 2 * EngineTicks::OURS - 2] {
            ticker.0.store(start, Ordering::Relaxed);
            for _ in 0..4 {
                ticker.tick(true);
                let now = ticker.now();
                assert!(now != last && now & EngineTicks::OURS != 0 && now < 2 * EngineTicks::OURS, "{now:#x}");
                last = now;
            }
        }
        ticker.tick(false);
        assert!(ticker.now() < EngineTicks::OURS);
    }

    #[test]
    fn who_was_asked_before_a_sleep_is_asked_again_after_it() {
        let (looked, ticker) = (LastCheck::default(), EngineTicks::default());
        ticker.tick(true);
        assert!(looked.is_still(&ticker, || true));
        ticker.tick(false);
        ticker.tick(true);
        assert!(!looked.is_still(&ticker, || false), "this is another tick");
    }
}

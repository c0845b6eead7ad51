//! Tests of copies from and to consumer memory, also if it is unmapped, protected or truncated between two copies, of
//! the check at registration, and of the table of usable pages. The lengths of copies select each method of copying.

use std::os::fd::AsRawFd;
use std::sync::atomic::AtomicUsize;

use rustix::fs::MemfdFlags;

use super::*;

const PAGE: usize = 4096;
const PAGES: usize = 264;

/// Address of the next mapping. The kernel itself chooses only addresses near its mmap base or the heap, far above
/// these. So mappings of other threads do not reuse an address that a test has unmapped.
static NEXT: AtomicUsize = AtomicUsize::new(64 << 30);

/// A mapping of `PAGES` pages of a file, or of anonymous memory.
struct Mapping {
    at: u64,
    file: Option<std::os::fd::OwnedFd>,
    checker: MappingChecker,
}

impl Mapping {
    fn new(is_file: bool) -> Self {
        let file = is_file.then(|| {
            let file = rustix::fs::memfd_create("user_copy", MemfdFlags::CLOEXEC).unwrap();
            rustix::fs::ftruncate(&file, (PAGES * PAGE) as u64).unwrap();
            file
        });
        let rights = libc::PROT_READ | libc::PROT_WRITE;
        let (flags, fd) = match &file {
            Some(file) => (libc::MAP_SHARED, file.as_raw_fd()),
            None => (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1),
        };
        let at = NEXT.fetch_add(2 * PAGES * PAGE, Ordering::Relaxed) as *mut _;
        // SAFETY: `MAP_FIXED_NOREPLACE` replaces no existing mapping.
        let placed = unsafe { libc::mmap(at, PAGES * PAGE, rights, flags | libc::MAP_FIXED_NOREPLACE, fd, 0) };
        assert_eq!(placed, at);
        Mapping { at: at as u64, file, checker: MappingChecker::default() }
    }

    fn registration(&self) -> RegisteredRange<'_> {
        RegisteredRange { region: Region { address: self.at, length: (PAGES * PAGE) as u64 }, checker: &self.checker }
    }

    /// Copies from or to the mapping, beginning at `offset`. Returns whether the copy succeeded.
    fn copies(&self, direction: Direction, offset: usize, length: usize) -> bool {
        let mut buffer = vec![7u8; length];
        let address = self.at + offset as u64;
        // SAFETY: the mapping belongs to this test, and `buffer` has `length` bytes.
        unsafe {
            match direction {
                Direction::Read => read(address, buffer.as_mut_ptr(), length, || self.registration()),
                Direction::Write => write(buffer.as_ptr(), address, length, || self.registration()),
            }
        }
    }

    fn protect(&self, page: usize, pages: usize, rights: i32) {
        // SAFETY: only this test accesses these pages.
        let done = unsafe { libc::mprotect((self.at as usize + page * PAGE) as *mut _, pages * PAGE, rights) };
        assert_eq!(done, 0);
    }

    fn unmap(&self, page: usize, pages: usize) {
        // SAFETY: only this test accesses these pages, and not after this call.
        let done = unsafe { libc::munmap((self.at as usize + page * PAGE) as *mut _, pages * PAGE) };
        assert_eq!(done, 0);
    }
}

/// Waits for the next time slot, in which the table records no page as usable.
fn next_slot() {
    let begin = slot();
    while slot() == begin {
        std::hint::spin_loop();
    }
}

const BOTH: [Direction; 2] = [Direction::Read, Direction::Write];
/// Lengths of copies within a page, across two pages, by the kernel, after a check of the surrounding block, and after
/// a check of only the copied memory.
const LENGTHS: [usize; 6] = [64, PAGE + 2, 3 * PAGE, 8 * PAGE + 1, 17 * PAGE, 130 * PAGE];

#[test]
fn user_copy_copies_bytes_in_both_directions() {
    for length in [0, 1, 2, 64, 4096, 5000, 16 << 10, 64 << 10, 512 << 10, 600_000] {
        for _ in 0..3 * MAX_KERNEL_COPIES {
            let memory = Mapping::new(length % 2 == 0);
            let source: Vec<u8> = (0..length).map(|n| n as u8 ^ (n >> 8) as u8).collect();
            let mut sink = vec![0u8; length];
            let at = memory.at + 1001;
            // SAFETY: only this test accesses this memory.
            unsafe {
                assert!(write(source.as_ptr(), at, length, || memory.registration()));
                assert!(read(at, sink.as_mut_ptr(), length, || memory.registration()));
            }
            assert!(sink == source, "{length}");
            memory.unmap(0, PAGES);
        }
    }
}

#[test]
fn recently_used_memory_is_written_at_any_length_and_alignment() {
    const LENGTH: usize = 100;
    let memory = Mapping::new(false);
    let source: Vec<u8> = (100..200).collect();
    for (length, offset) in (0..=80).flat_map(|length| (0..9).map(move |offset| (length, offset))) {
        // The time slot of the first write may end before the second write.
        let is_written = || {
            assert!(memory.copies(Direction::Write, 0, LENGTH));
            // SAFETY: `memory` belongs to this test, and `source` has at least `length` bytes.
            unsafe { write_recent(source.as_ptr(), memory.at + 8 + offset, length, TimeSlot::now()) }
        };
        while !is_written() {}
        let mut found = [0; LENGTH];
        // SAFETY: `found` has `LENGTH` bytes.
        assert!(unsafe { read(memory.at, found.as_mut_ptr(), LENGTH, || memory.registration()) });
        let mut expected = [7; LENGTH];
        expected[8 + offset as usize..][..length].copy_from_slice(&source[..length]);
        assert_eq!(found, expected, "{length} bytes at {offset}");
    }
}

#[test]
fn copy_that_extends_into_unmapped_memory_fails() {
    for direction in BOTH {
        for length in LENGTHS {
            let memory = Mapping::new(false);
            memory.unmap(PAGES / 2, PAGES / 2);
            for _ in 0..3 * MAX_KERNEL_COPIES {
                assert!(memory.copies(direction, 0, 64) && memory.copies(direction, PAGES / 2 * PAGE - length, length));
                assert!(!memory.copies(direction, PAGES / 2 * PAGE - 1, length), "the end is not mapped");
                assert!(!memory.copies(direction, PAGES / 2 * PAGE, length), "nothing is mapped");
            }
        }
    }
}

#[test]
fn memory_lost_after_use_is_detected_in_the_next_time_slot() {
    for (direction, length) in BOTH.into_iter().flat_map(|direction| LENGTHS.map(|length| (direction, length))) {
        let memory = Mapping::new(true);
        for offset in [0, 1] {
            assert!(memory.copies(direction, offset, length));
        }
        memory.protect(0, PAGES, libc::PROT_NONE);
        next_slot();
        assert!(!memory.copies(direction, 0, length));
        memory.protect(0, PAGES, libc::PROT_READ);
        assert_eq!(memory.copies(direction, 0, length), direction == Direction::Read, "{length}");
        memory.protect(0, PAGES, libc::PROT_READ | libc::PROT_WRITE);
        assert!(memory.copies(direction, 0, length));
        rustix::fs::ftruncate(memory.file.as_ref().unwrap(), 0).unwrap();
        next_slot();
        assert!(!memory.copies(direction, 0, length));
        rustix::fs::ftruncate(memory.file.as_ref().unwrap(), (PAGES * PAGE) as u64).unwrap();
        assert!(memory.copies(direction, 0, length));
        memory.unmap(0, PAGES);
        next_slot();
        assert!(!memory.copies(direction, 0, length));
    }
}

#[test]
fn registration_checks_rights_and_file_length() {
    for is_file in [false, true] {
        let memory = Mapping::new(is_file);
        let may = |page: usize, pages: usize, write| {
            let region = Region { address: memory.at + (page * PAGE) as u64, length: (pages * PAGE) as u64 };
            memory.checker.may_register(region, write)
        };
        memory.protect(2, 1, libc::PROT_READ);
        memory.protect(3, 1, libc::PROT_NONE);
        assert!(may(0, 2, true) && may(0, 3, false) && may(4, PAGES - 4, true) && may(3, 0, true));
        assert!(!may(0, 3, true) && !may(0, 4, false) && !may(3, 1, false));
        memory.unmap(5, 1);
        assert!(!may(4, 2, false) && !may(5, 1, true) && may(6, 1, true));
        if let Some(file) = &memory.file {
            rustix::fs::ftruncate(file, (8 * PAGE) as u64).unwrap();
            assert!(
                may(6, 2, true) && !may(6, 3, true) && !may(8, 1, false),
                "pages beyond the end of the file are refused"
            );
        }
    }
}

#[test]
fn copy_into_read_only_memory_fails_after_reads_of_it() {
    let memory = Mapping::new(false);
    for n in 0..100 {
        memory.protect(n % 8, 1, libc::PROT_READ);
        let offset = n % 8 * PAGE;
        assert!(memory.copies(Direction::Read, offset, 64));
        assert!(!memory.copies(Direction::Write, offset, 64));
    }
}

#[test]
fn checked_block_is_limited_to_the_registration() {
    let region = |address, length| Region { address, length };
    let all = region(BLOCK * 10 + 100, BLOCK * 3);
    assert_eq!(around(region(all.address, 1), all), region(all.address, BLOCK - 100));
    assert_eq!(around(region(BLOCK * 12, 8), all), region(BLOCK * 12, BLOCK));
    assert_eq!(around(region(BLOCK * 12 - 1, 2), all), region(BLOCK * 11, 2 * BLOCK));
    let short = region(BLOCK * 10 - 100, BLOCK);
    assert_eq!(around(region(BLOCK * 10, 8), short), short, "a short registration is checked as a whole");
    let end = all.address + all.length;
    assert_eq!(around(region(end - 1, 1), all), region(BLOCK * 13, 100));
    assert_eq!(
        around(region(end - 1, 1), Region::default()),
        region(end - 1, 1),
        "a range outside its registration is checked alone"
    );
}

#[test]
fn check_table_words_differ_by_page_and_time_slot() {
    assert_ne!(word(0, 0), 0, "an empty entry matches no page");
    let addresses: [u64; 4] = [0, 1 << 24, 5 << 24, 1 << 56];
    let slots = [0, 2, SLOT_MASK];
    let mut words: Vec<_> = addresses.iter().flat_map(|page| slots.map(|slot| word(*page, slot))).collect();
    words.sort_unstable();
    words.dedup();
    assert_eq!(words.len(), addresses.len() * slots.len());
    let spanned: Vec<_> = pages_of(PAGE as u64 - 1, 2);
    assert_eq!(spanned, [0, PAGE as u64]);
    assert_eq!((pages_of(PAGE as u64, PAGE as u64).len(), pages_of(5, 0).len()), (1, 0));
}

fn pages_of(address: u64, length: u64) -> Vec<u64> {
    pages(Region { address, length }).collect()
}

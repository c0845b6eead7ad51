//! Writes the cpio archive from which a kernel fills its initial file system ("newc",
//! Documentation/driver-api/early-userspace/buffer-format).
//!
//! Does no I/O. Supports regular files and folders only, which is all that the guests' initramfs needs.
#![forbid(unsafe_code)]

const DIRECTORY_MODE: u32 = 0o040_755;
const PROGRAM_MODE: u32 = 0o100_755;

/// An archive being written.
pub(super) struct Archive {
    bytes: Vec<u8>,
    entries: u32,
}

impl Archive {
    pub(super) fn new() -> Self {
        Archive { bytes: Vec::new(), entries: 0 }
    }

    /// Adds a folder. Its parents must have been added before.
    pub(super) fn folder(&mut self, name: &str) {
        self.entry(name, DIRECTORY_MODE, &[]);
    }

    /// Adds an executable file.
    pub(super) fn file(&mut self, name: &str, content: &[u8]) {
        self.entry(name, PROGRAM_MODE, content);
    }

    /// Returns the complete archive.
    pub(super) fn finish(mut self) -> Vec<u8> {
        self.entry("TRAILER!!!", 0, &[]);
        self.bytes
    }

    fn entry(&mut self, name: &str, mode: u32, content: &[u8]) {
        self.entries += 1;
        let length = u32::try_from(content.len()).expect("a kernel module is smaller than 4 GiB");
        let name_length = u32::try_from(name.len() + 1).expect("a file name is shorter than 4 GiB");
        // Inode, mode, owner, group, links, mtime, length, device (major, minor), rdev (major, minor), length of the
        // name, checksum (unused).
        let fields = [self.entries, mode, 0, 0, 1, 0, length, 0, 0, 0, 0, name_length, 0];
        self.bytes.extend_from_slice(b"070701");
        for field in fields {
            self.bytes.extend_from_slice(format!("{field:08X}").as_bytes());
        }
        self.bytes.extend_from_slice(name.as_bytes());
        self.bytes.push(0);
        self.align();
        self.bytes.extend_from_slice(content);
        self.align();
    }

    /// Pads with zeros to a multiple of four bytes.
    fn align(&mut self) {
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpio_archive_has_the_format_of_the_kernel() {
        let mut archive = Archive::new();
        archive.file("init", b"hello");
        let bytes = archive.finish();
        let file = "070701000000010000\
                    81ED0000000000000000000000010000000000000005\
                    0000000000000000000000000000000000000005\
                    00000000init\0\0hello\0\0\0";
        assert_eq!(String::from_utf8_lossy(&bytes[..file.len()]), file);
        assert_eq!(&bytes[file.len()..file.len() + 6], b"070701");
        assert!(bytes.len().is_multiple_of(4) && bytes.windows(10).any(|window| window == b"TRAILER!!!"));
    }
}

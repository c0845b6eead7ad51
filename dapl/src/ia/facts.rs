//! Named facts about a provider, kept as C strings as long as the IA lives.
//!
//! `dat_ia_query` hands out pointers into this; nothing here changes after the open.
#![forbid(unsafe_code)]

use std::ffi::CString;

use dat_abi::DAT_NAMED_ATTR;

/// The strings, and a list of their addresses in the layout of `DAT_NAMED_ATTR`.
#[derive(Default)]
pub(super) struct Facts {
    list: Box<[[usize; 2]]>,
    _strings: Vec<CString>,
}

const _: () = assert!(size_of::<DAT_NAMED_ATTR>() == size_of::<[usize; 2]>());

impl Facts {
    /// Keeps `facts`; one with a zero byte inside is left out.
    pub(super) fn new(facts: impl IntoIterator<Item = (String, String)>) -> Self {
        let mut strings = Vec::new();
        let mut list = Vec::new();
        for (name, value) in facts {
            let (Ok(name), Ok(value)) = (CString::new(name), CString::new(value)) else { continue };
            list.push([name.as_ptr() as usize, value.as_ptr() as usize]);
            strings.extend([name, value]);
        }
        Facts { list: list.into(), _strings: strings }
    }

    /// How many there are, and where.
    pub(super) fn as_attributes(&self) -> (i32, *mut DAT_NAMED_ATTR) {
        match self.list.len() {
            0 => (0, std::ptr::null_mut()),
            n => (n as i32, self.list.as_ptr().cast_mut().cast()),
        }
    }
}

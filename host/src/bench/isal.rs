//! P and Q by ISA-L, as a yardstick: the library is loaded at run time if it is installed.
#![allow(unsafe_code)]

use engine::buf::Buf;
use std::ffi::{c_int, c_void};

/// `pq_gen` of ISA-L: number of vectors, their length, their addresses; the last two are P and Q.
type PqGen = unsafe extern "C" fn(c_int, c_int, *mut *mut c_void) -> c_int;

/// Alignment and unit of length of the vectors, in bytes.
const ALIGNMENT: usize = 64;

/// Maximum number of vectors.
const MOST_VECTORS: usize = 16;

/// The library.
pub struct Isal(PqGen);

impl Isal {
    /// Loads `libisal.so.2`; `None` if there is none.
    pub fn load() -> Option<Isal> {
        // SAFETY: the names are terminated. The library is ISA-L by its name; loading it runs no other code.
        let function = unsafe {
            let library = libc::dlopen(c"libisal.so.2".as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL);
            if library.is_null() {
                return None;
            }
            libc::dlsym(library, c"pq_gen".as_ptr())
        };
        // SAFETY: the function has this type in all versions of the library with this number, and is never unloaded.
        (!function.is_null()).then(|| Isal(unsafe { std::mem::transmute::<*mut c_void, PqGen>(function) }))
    }

    /// P and Q of 2 to 14 chunks, computed that many times: checks and addresses are needed once.
    pub fn pq(&self, p: &mut [u8], q: &mut [u8], chunks: &[Buf], times: usize) {
        let len = p.len();
        let fits = |bytes: &[u8]| {
            bytes.len() == len
                && len.is_multiple_of(ALIGNMENT)
                && bytes.as_ptr().addr().is_multiple_of(ALIGNMENT)
        };
        assert!((2..=MOST_VECTORS - 2).contains(&chunks.len()));
        assert!(fits(p) && fits(q) && chunks.iter().all(|chunk| fits(chunk)));
        let mut vectors = [std::ptr::null_mut(); MOST_VECTORS];
        let sources = chunks.iter().map(|chunk| chunk.as_ptr().cast_mut().cast::<c_void>());
        let targets = [p.as_mut_ptr().cast(), q.as_mut_ptr().cast()];
        for (vector, address) in vectors.iter_mut().zip(sources.chain(targets)) {
            *vector = address;
        }
        for _ in 0..times {
            // SAFETY: as many vectors as given have this length and alignment. The function writes to the last two
            // only, which are borrowed exclusively.
            let failed = unsafe { (self.0)(chunks.len() as c_int + 2, len as c_int, vectors.as_mut_ptr()) };
            assert!(failed == 0, "ISA-L computes P and Q");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use engine::code::pq;

    #[test]
    fn isal_agrees_with_the_engine_if_installed() {
        let Some(isal) = Isal::load() else { return };
        let chunks: Vec<Buf> = (0..4)
            .map(|n| Buf::copy_of(&(0..4096).map(|i| (i * (n + 3)) as u8).collect::<Vec<_>>()))
            .collect();
        let mut targets = [0, 1, 2, 3].map(|_| Buf::zeroed(4096));
        let [p, q, p_isal, q_isal] = targets.each_mut().map(|target| target.as_mut().unwrap());
        pq::pq_all(p, q, &chunks);
        isal.pq(p_isal, q_isal, &chunks, 1);
        assert!(p == p_isal && q == q_isal && p != q);
    }
}

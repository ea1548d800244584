//! Retries: a shortage of the host is not a failure of a drive.
//!
//! For lack of memory or of a request, or because a resource is busy, the kernel refuses an operation before it reaches
//! the drive. It is retried a moment later. Only if that continues for seconds is the error reported; after half a
//! minute if the drive's controller is being reset.

use io_uring::types::Timespec;
use std::time::Duration;

/// Delays before the first, second … retry: four seconds in all. Static, because the kernel reads them when it starts
/// the timer.
static PAUSES: [Timespec; 12] = [
    pause_of(1),
    pause_of(2),
    pause_of(4),
    pause_of(8),
    pause_of(16),
    pause_of(32),
    pause_of(64),
    pause_of(128),
    pause_of(256),
    pause_of(512),
    pause_of(1024),
    pause_of(2048),
];

const fn pause_of(milliseconds: u32) -> Timespec {
    Timespec::new().sec(milliseconds as u64 / 1000).nsec(milliseconds % 1000 * 1_000_000)
}

/// Delay before the retry of an operation with `result`, a negative errno, after `tried` retries. `None` if it is not
/// to be retried.
pub fn pause(result: i32, tried: usize) -> Option<&'static Timespec> {
    match -result {
        libc::ENOMEM | libc::ENOBUFS | libc::EAGAIN | libc::EBUSY => PAUSES.get(tried),
        _ => None,
    }
}

/// Delay before the retry of an operation for which there is no path to the drive: a reset of the controller may take
/// half a minute.
pub fn pause_for_path(tried: usize) -> Option<&'static Timespec> {
    PAUSES.get(tried.min(PAUSES.len() - 1)).filter(|_| tried < PAUSES.len() + 13)
}

/// As [`pause`], for a system call with `errno`, which is repeated also after EINTR.
pub fn pause_of_call(errno: i32, tried: usize) -> Option<Duration> {
    let errno = if errno == libc::EINTR { libc::EAGAIN } else { errno };
    pause(-errno, tried).map(|_| Duration::from_millis(1 << tried))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shortage_is_retried_and_errors_are_not() {
        for shortage in [libc::ENOMEM, libc::EAGAIN, libc::EBUSY, libc::ENOBUFS] {
            let tries = (0..100).take_while(|tried| pause(-shortage, *tried).is_some()).count();
            let waited: Duration = (0..tries).filter_map(|tried| pause_of_call(shortage, tried)).sum();
            assert!((2..=10).contains(&waited.as_secs()), "{waited:?}");
        }
        for end in [0, 4096, 0x2b8, -libc::EIO, -libc::ENODEV, -libc::EINTR, -libc::EINVAL, i32::MIN + 1] {
            assert!(pause(end, 0).is_none(), "{end}");
        }
        assert!(pause_of_call(libc::EINTR, 0).is_some() && pause_of_call(libc::EIO, 0).is_none());
    }

    #[test]
    fn missing_path_is_retried_for_controller_reset_time() {
        let pauses = (0..100).map_while(pause_for_path).count();
        assert_eq!(pauses, PAUSES.len() + 13);
        assert_eq!(format!("{:?}", pause_for_path(pauses - 1)), format!("{:?}", PAUSES.last()));
    }

    #[test]
    fn shortage_pauses_match_kernel_timespecs() {
        for (tried, told) in PAUSES.iter().enumerate() {
            let time = pause_of_call(libc::ENOMEM, tried).unwrap();
            assert_eq!(format!("{told:?}"), format!("{:?}", Timespec::from(time)));
        }
    }
}

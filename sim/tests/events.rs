//! Events of a running array: each change is reported by exactly one event.

use crate::support::{
    array::{drives, geometry, options, run, write},
    rig::{Act, Rig},
};
use engine::{
    array::{Array, Drive, Event},
    device::{Command, Status},
    raid::error::Note,
    runtime::Runtime,
    zone::ZoneIndex,
};

const CHUNK: u64 = 4;
/// Metadata zones of a drive, before the data zones.
const META_ZONES: u32 = 2;

fn create(runtime: &Runtime, all: &[Drive]) -> Array {
    run(runtime, Array::create(runtime, options(CHUNK), all.to_vec())).unwrap()
}

/// The events since `next`, which is advanced, without `Settled`.
fn heard(array: &Array, next: &mut u64) -> Vec<Event> {
    let noted = array.events(*next);
    assert_eq!((noted.dropped, noted.first), (0, *next));
    *next = noted.next();
    noted.events.into_iter().filter(|event| !matches!(event, Event::Settled { .. })).collect()
}

#[test]
fn events_report_member_failure_attach_and_rebuild() {
    let runtime = Runtime::new();
    let mut all = drives(5, &geometry(6, 200, 4));
    let spare = all.pop().unwrap();
    let (array, mut next) = (create(&runtime, &all), 0);
    write(&runtime, &array, 0, 0, 30, true);
    assert_eq!(heard(&array, &mut next), []);
    run(&runtime, array.fail(2)).unwrap();
    assert_eq!(heard(&array, &mut next), [Event::Out { member: 2, why: Note::ByOperator }]);
    let told = array.events(0).events;
    let others = 0b1011;
    assert!(told.iter().any(|event| matches!(event, Event::Settled { active, .. } if *active == others)));
    run(&runtime, array.attach(2, spare)).unwrap();
    assert_eq!(heard(&array, &mut next), [Event::Attached { member: 2, drive: "drive4".into() }]);
    let bytes = run(&runtime, array.rebuild(&|_| ())).unwrap().bytes;
    assert!(bytes > 0);
    assert_eq!(heard(&array, &mut next), [Event::RebuildBegun, Event::RebuildEnded { bytes }]);
}

#[test]
fn events_report_missing_member_but_not_refused_removal() {
    let runtime = Runtime::new();
    let all = drives(4, &geometry(6, 200, 4));
    drop(create(&runtime, &all));
    runtime.clear();
    let (array, mut next) = (run(&runtime, Array::assemble(&runtime, all[1..].to_vec())).unwrap(), 0);
    assert_eq!(heard(&array, &mut next), [Event::Out { member: 0, why: Note::Missing }]);
    assert!(run(&runtime, array.fail(1)).is_err());
    assert_eq!(heard(&array, &mut next), []);
}

/// An event names the failed operation, its error and its effect: an error of a zone costs the part, any other error
/// the member.
#[test]
fn events_report_errors_with_lost_part_or_member() {
    let (member, zone, what) = (1, 1, "write");
    let lost = Event::PartLost { member, zone, what, error: Status::WriteFault.into() };
    let out = Event::Out { member, why: Note::Failed { what, error: Status::InternalError.into() } };
    for (act, event) in [(Act::Refuse, lost), (Act::Fail, out)] {
        let (runtime, rig, geometry) = (Runtime::new(), Rig::new(), geometry(6, 200, 4));
        let all: Vec<_> = (0..4).map(|_| rig.drive(&geometry)).collect();
        let (array, mut next) = (create(&runtime, &all), 0);
        write(&runtime, &array, zone, 0, 30, true);
        assert_eq!(heard(&array, &mut next), []);
        let start = geometry.start(ZoneIndex(META_ZONES + zone)).0;
        rig.rule(move |drive, command| match command {
            Command::Write { lba, .. } if drive == member && lba.0 >= start => act,
            _ => Act::Pass,
        });
        write(&runtime, &array, zone, 30, 30, true);
        assert_eq!(event.accused(), Some(member));
        assert_eq!(heard(&array, &mut next), [event]);
    }
}

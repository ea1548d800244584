use super::*;

/// Blocks that the device serves between two looks.
const ALL: u64 = 8000;

/// Blocks of each request.
const EACH: u64 = 8;

/// A model of clients that overload a device. The device serves them in proportion to the blocks that each was
/// admitted, up to its throughput; requests of the latency class are late while others take more than nine tenths of
/// that.
struct Rig {
    now_us: u64,
    throttle: Throttle,
    qos: Vec<Qos>,
    standings: Vec<ThrottleState>,
    served: Vec<u64>,
    /// Requests are late, however little others take.
    hopeless: bool,
    /// Blocks that the device serves between two looks, and looks at which there were late requests.
    all: u64,
    late: u64,
}

impl Rig {
    fn new(qos: &[Qos]) -> Rig {
        let throttle = Throttle::default();
        let (standings, served) = (vec![ThrottleState::default(); qos.len()], vec![0; qos.len()]);
        Rig { now_us: 0, throttle, qos: qos.to_vec(), standings, served, hopeless: false, all: ALL, late: 0 }
    }

    /// A look before which each client had demand for this number of blocks.
    fn look(&mut self, asked: &[u64]) {
        let may = |(asked, standing): (&u64, &ThrottleState)| {
            let rate = standing.hold.rate().unwrap_or(u64::MAX / LOOK_EVERY_US) * LOOK_EVERY_US / SECOND_US;
            (*asked).min(rate)
        };
        let let_through: Vec<u64> = asked.iter().zip(&self.standings).map(may).collect();
        let all: u64 = let_through.iter().sum();
        self.served =
            let_through.iter().map(|let_through| let_through * self.all.min(all) / all.max(1)).collect();
        let full = self.hopeless || self.served.iter().sum::<u64>() > self.all * 9 / 10;
        self.late += full as u64;
        self.now_us += LOOK_EVERY_US;
        let party = |((qos, asked), (served, standing)): ((&Qos, &u64), (&u64, &ThrottleState))| {
            let requests = served / EACH;
            let late = if full && qos.latency_us > 0 { requests } else { 0 };
            let busy_us = if *asked > 0 { LOOK_EVERY_US } else { 0 };
            let took_us = requests * if full { 1000 } else { 100 };
            let seen = Demand { requests, blocks: *served, late, took_us, busy_us, ..Demand::default() };
            ThrottleEntry::new(*qos, 1, seen, *standing)
        };
        let before = self.qos.iter().zip(asked).zip(self.served.iter().zip(&self.standings));
        let mut parties: Vec<ThrottleEntry> = before.map(party).collect();
        self.throttle.look(self.now_us, &mut parties);
        self.standings = parties.iter().map(ThrottleEntry::standing).collect();
    }

    /// Mean blocks that each client was served between two looks.
    fn looks(&mut self, count: u64, asked: &[u64]) -> Vec<u64> {
        let mut sums = vec![0; asked.len()];
        for _ in 0..count {
            self.look(asked);
            sums.iter_mut().zip(&self.served).for_each(|(sum, served)| *sum += served);
        }
        sums.iter().map(|sum| sum / count).collect()
    }

    fn is_held(&self) -> bool {
        self.standings.iter().any(|standing| standing.hold.rate().is_some())
    }
}

fn floor(blocks_of_a_look: u64) -> Qos {
    let blocks = (blocks_of_a_look * SECOND_US / LOOK_EVERY_US) as u32;
    Qos { floors: Rates { requests: 0, blocks }, ..Qos::default() }
}

const NONE: Qos =
    Qos { limits: Rates { requests: 0, blocks: 0 }, floors: Rates { requests: 0, blocks: 0 }, latency_us: 0 };

#[test]
fn throttle_keeps_demanded_floor_and_shares_rest_equally() {
    let mut rig = Rig::new(&[floor(4000), NONE, NONE, NONE]);
    let asked = [8000; 4];
    // Before throttling each gets a quarter.
    rig.look(&asked);
    assert_eq!(rig.served, [2000; 4]);
    // Within a period it is served its floor.
    rig.looks(9, &asked);
    assert!(rig.served[0] >= 4000, "{:?}", rig.served);
    let mean = rig.looks(300, &asked);
    assert!(mean[0] >= 4000, "{mean:?}");
    assert!(mean[1..].iter().sum::<u64>() >= ALL - 4000 - 500, "{mean:?}");
    assert!(mean[1..].iter().all(|each| each.abs_diff(mean[1]) < 50), "{mean:?}");
}

#[test]
fn throttle_keeps_floor_in_requests() {
    let floors = Rates { requests: 50_000, blocks: 0 };
    let mut rig = Rig::new(&[Qos { floors, ..NONE }, NONE]);
    let mean = rig.looks(300, &[8000, 40_000]);
    assert!(mean[0] >= 500 * EACH * 98 / 100 && mean[1] >= 3500, "{mean:?}");
}

#[test]
fn idle_floor_is_lent_and_returned_within_period() {
    let mut rig = Rig::new(&[floor(4000), NONE, NONE]);
    rig.looks(100, &[8000; 3]);
    assert!(rig.is_held());
    // An idle floor throttles no client.
    rig.looks(PERIOD_US / LOOK_EVERY_US, &[0, 8000, 8000]);
    assert!(!rig.is_held());
    assert_eq!(rig.looks(1000, &[0, 8000, 8000]), [0, 4000, 4000]);
    rig.looks(PERIOD_US / LOOK_EVERY_US, &[8000; 3]);
    assert!(rig.served[0] >= 4000, "{:?}", rig.served);
    // A floor throttles no client while its owner has less demand than its fair share.
    let mut rig = Rig::new(&[floor(4000), NONE]);
    let seen = Demand { requests: 10, blocks: 80, busy_us: 150, ..Demand::default() };
    let mut parties =
        [floor(4000), NONE].map(|qos| ThrottleEntry::new(qos, 1, seen, ThrottleState::default()));
    rig.throttle.look(LOOK_EVERY_US, &mut parties);
    assert!(parties.iter().all(|party| party.standing().hold.rate().is_none()));
}

#[test]
fn unreachable_floor_never_starves_others_nor_caps_owner() {
    // A floor above the throughput of the device.
    let mut rig = Rig::new(&[floor(20_000), floor(1000), NONE, NONE]);
    rig.looks(100, &[8000, 8000, 8000, 8000]);
    let mean = rig.looks(100, &[8000; 4]);
    assert!(mean[1] >= 950 && mean[2..].iter().all(|each| *each >= ALL / LEAST / 8), "{mean:?}");
    assert_eq!([0, 1].map(|party| rig.standings[party].out_of_reach()), [[true, false], [false; 2]]);
    // No client stops in the first looks either, in which it is not known yet that the floor is out of reach.
    let mut rig = Rig::new(&[floor(20_000), floor(1000), NONE, NONE]);
    for _ in 0..50 {
        rig.look(&[8000; 4]);
        let with_a_floor = rig.standings[1].hold.rate();
        assert!(with_a_floor.is_none_or(|rate| rate >= 112_500), "{with_a_floor:?}");
        assert!(rig.served[1..].iter().all(|served| *served >= ALL / LEAST / 8), "{:?}", rig.served);
    }
    let mut rig = Rig::new(&[floor(1000), NONE]);
    assert_eq!(rig.looks(50, &[8000, 3000]), [5818, 2181]);
    assert!(!rig.is_held());
}

#[test]
fn latency_class_throttles_others_only_while_too_late() {
    let class = Qos { latency_us: 100, ..NONE };
    let mut rig = Rig::new(&[class, NONE, NONE]);
    let mean = rig.looks(1000, &[80, 8000, 8000]);
    assert!((70..=80).contains(&mean[0]) && mean[1] + mean[2] >= ALL * 8 / 10, "{mean:?}");
    rig.looks(PERIOD_US / LOOK_EVERY_US, &[0, 8000, 8000]);
    assert!(!rig.is_held());
    // A latency that throttling cannot improve costs others a fifth while that is tried, and is tried seldom.
    let mut rig = Rig::new(&[class, NONE, NONE]);
    rig.hopeless = true;
    let tried = KNOWN as u64 + 2 * TRIES + 2;
    let mean = rig.looks(tried, &[80, 8000, 8000]);
    assert!(!rig.is_held() && mean[1] + mean[2] < ALL * 9 / 10, "{mean:?}");
    assert_eq!([0, 1].map(|party| rig.standings[party].out_of_reach()), [[false, true], [false; 2]]);
    let mean = rig.looks(BELIEVED_US / LOOK_EVERY_US - 2 * TRIES, &[80, 8000, 8000]);
    assert!(mean[1] + mean[2] > ALL * 98 / 100, "{mean:?}");
    // Then it is tried again, and throttling stays if it helps.
    rig.hopeless = false;
    rig.looks(100, &[80, 8000, 8000]);
    assert!(rig.is_held() && !rig.standings[0].out_of_reach()[1]);
}

#[test]
fn latency_throttle_reapproaches_late_rate_in_small_steps() {
    let class = Qos { latency_us: 100, ..NONE };
    let mut rig = Rig::new(&[class, NONE, NONE]);
    let asked = [80, 8000, 8000];
    rig.looks(100, &asked);
    let late = rig.late;
    let mean = rig.looks(10_000, &asked);
    // Ten requests between two looks, and one of a thousand may be late.
    assert!(rig.late - late <= 8, "{} {mean:?}", rig.late - late);
    assert!(mean[1] + mean[2] >= ALL * 82 / 100, "{mean:?}");
    // The throughput at which a request was late is forgotten with the demand of the latency class.
    rig.looks(PERIOD_US / LOOK_EVERY_US, &[0, 8000, 8000]);
    assert!(!rig.is_held());
}

#[test]
fn unreachable_floor_stops_throttling_others() {
    // Its demand is never above 1500.
    let mut rig = Rig::new(&[floor(4000), NONE, NONE]);
    rig.looks(200, &[1500, 8000, 8000]);
    let mean = rig.looks(500, &[1500, 8000, 8000]);
    assert!(mean[0] >= 1300 && mean[1] + mean[2] >= 6000, "{mean:?}");
    // When its demand rises that is noticed, and it gets its floor.
    rig.looks(PERIOD_US / LOOK_EVERY_US, &[8000; 3]);
    let mean = rig.looks(100, &[8000; 3]);
    assert!(mean[0] >= 3950, "{mean:?}");
}

#[test]
fn latency_throttle_keeps_most_throughput_after_pause() {
    let class = Qos { latency_us: 100, ..NONE };
    for lull in [0, 100] {
        let mut rig = Rig::new(&[class, NONE, NONE]);
        rig.looks(100, &[80, 8000, 8000]);
        rig.looks(3000, &[80, lull, lull]);
        // They begin between two looks, and a request is late at once.
        rig.hopeless = true;
        rig.look(&[80, 500, 500]);
        rig.hopeless = false;
        let mean = rig.looks(3, &[80, 8000, 8000]);
        assert!(mean[1] + mean[2] >= ALL * 79 / 100, "{mean:?}");
        // The peak throughput was not forgotten while there was no demand.
        assert_eq!(rig.is_held(), lull == 0);
    }
}

#[test]
fn throttle_lends_minimum_of_small_clients_to_others() {
    let class = Qos { latency_us: 100, ..NONE };
    let mut rig = Rig::new(&[class, NONE, NONE, NONE]);
    rig.hopeless = true;
    for _ in 0..KNOWN as u64 + TRIES {
        rig.look(&[80, 8000, 80, 80]);
        assert!(rig.served[1..].iter().sum::<u64>() >= ALL * 78 / 100, "{:?}", rig.served);
    }
    assert!(rig.is_held());
}

#[test]
fn throttle_leaves_one_sixteenth_beside_floor_and_latency() {
    let class = Qos { latency_us: 100, ..NONE };
    let mut rig = Rig::new(&[class, floor(7000), NONE]);
    for _ in 0..120 {
        rig.look(&[80, 7500, 8000]);
        assert!(rig.served[2] >= ALL / LEAST * 8 / 10, "{:?}", rig.served);
    }
}

#[test]
fn smallest_floor_is_found_lacking() {
    let mut standing = ThrottleState::default();
    let qos = Qos { floors: Rates { requests: 9, blocks: 0 }, ..NONE };
    let seen = Demand { asking: 1, busy_us: LOOK_EVERY_US, ..Demand::default() };
    assert!((0..50).any(|_| standing.find(qos, &seen, false, LOOK_EVERY_US).lacks > 0));
}

#[test]
fn qos_out_of_reach_is_remembered_after_pause() {
    let class = Qos { latency_us: 100, ..NONE };
    for (qos, asked) in [(floor(4000), 1500), (class, 80)] {
        let mut rig = Rig::new(&[qos, NONE, NONE]);
        rig.hopeless = true;
        rig.looks(60, &[asked, 8000, 8000]);
        let (mut sum, idle) = (0, PERIOD_US / LOOK_EVERY_US);
        for _ in 0..20 {
            rig.looks(idle, &[0, 8000, 8000]);
            let mean = rig.looks(30, &[asked, 8000, 8000]);
            sum += mean[1] + mean[2];
        }
        assert!(sum / 20 >= (ALL - asked) * 97 / 100, "{sum}");
    }
}

#[test]
fn throttle_spares_small_client_beside_large_one() {
    let mut rig = Rig::new(&[floor(5000), NONE, NONE]);
    rig.looks(50, &[8000, 8000, 600]);
    let rates = [1, 2].map(|number: usize| rig.standings[number].hold.rate().unwrap());
    assert!(rates[0] < 400_000 && rates[1] >= 60_000, "{rates:?}");
}

#[test]
fn latency_throttle_ends_when_device_becomes_faster() {
    let class = Qos { latency_us: 100, ..NONE };
    let mut rig = Rig::new(&[class, NONE, NONE]);
    rig.looks(30, &[80, 8000, 8000]);
    assert!(rig.is_held() && rig.throttle.for_latency);
    rig.all = 4 * ALL;
    rig.looks(3000, &[80, 8000, 8000]);
    assert!(!rig.is_held() && !rig.throttle.for_latency);
}

#[test]
fn latency_beside_floor_is_judged_by_unthrottled_sample() {
    let class = Qos { latency_us: 100, ..NONE };
    let mut rig = Rig::new(&[class, floor(4000), NONE, NONE]);
    let asked = [80, 8000, 8000, 8000];
    rig.looks(KNOWN as u64, &asked);
    // The mean latency is a third of that without throttling, though a quarter of the requests are late.
    for look in 0..200 {
        rig.hopeless = look % 4 == 0;
        rig.look(&asked);
    }
    assert!(rig.throttle.for_latency);
    // One slow request is no sample, and from then on others are throttled for another client.
    let mut standing = ThrottleState::default();
    let seen = Demand { asking: 1, requests: 1, late: 1, took_us: 9000, ..Demand::default() };
    standing.find(class, &seen, false, LOOK_EVERY_US);
    let seen = Demand { asking: 1, requests: 10, late: 4, took_us: 8600, ..Demand::default() };
    let looks = 3 * TRIES;
    assert!(!(0..looks).map(|_| standing.find(class, &seen, true, LOOK_EVERY_US).asks).last().unwrap());
}

#[test]
fn floor_debt_lapses_while_demand_is_rare() {
    let mut standing = ThrottleState::default();
    let mut owed = |busy_us, blocks| {
        let seen = Demand { requests: 1, blocks, busy_us, ..Demand::default() };
        standing.find(floor(4000), &seen, true, LOOK_EVERY_US).owed
    };
    assert!((0..5).all(|_| owed(LOOK_EVERY_US, 1000)));
    // It is served its demand, no more.
    let looks = (0..1000).take_while(|_| owed(20, 8)).count();
    assert!((5..100).contains(&looks), "{looks}");
}

#[test]
fn latency_is_kept_with_floor_and_slower_device() {
    let class = Qos { latency_us: 100, ..NONE };
    let mut rig = Rig::new(&[class, floor(4000), NONE, NONE]);
    rig.looks(100, &[80, 8000, 8000, 8000]);
    let late = rig.late;
    rig.looks(500, &[80, 8000, 8000, 8000]);
    assert!(rig.late - late < 100, "{}", rig.late - late);
    let mut rig = Rig::new(&[class, floor(500), NONE, NONE]);
    rig.looks(100, &[80, 8000, 8000, 8000]);
    rig.all = ALL / 2;
    rig.looks(3000, &[80, 8000, 8000, 8000]);
    let late = rig.late;
    let mean = rig.looks(500, &[80, 8000, 8000, 8000]);
    assert!(rig.late - late < 100, "{} {mean:?}", rig.late - late);
    assert!(mean[1..].iter().sum::<u64>() > ALL / 2 * 78 / 100, "{mean:?}");
}

#[test]
fn latency_class_tolerates_one_late_in_thousand() {
    let mut standing = ThrottleState::default();
    let qos = Qos { latency_us: 100, ..NONE };
    let mut find = |requests, late| {
        let seen = Demand { asking: 1, requests, late, ..Demand::default() };
        let found = standing.find(qos, &seen, false, LOOK_EVERY_US);
        (found.late, found.owed)
    };
    let (fine, late, owed) = ((false, false), (true, true), (false, true));
    assert!((0..10).all(|_| find(2000, 0) == fine));
    assert!((0..10).all(|_| find(1000, 1) == fine));
    assert_eq!([find(900, 1), find(100, 1), find(100, 1)], [fine, fine, late]);
    // A shortfall is made up for before any rate grows.
    assert_eq!([find(500, 0), find(399, 0), find(200, 0)], [owed, owed, fine]);
    // Each look pays something off, and the excess that is remembered is bounded.
    assert_eq!(find(1000, 1000), late);
    let looks = (0..).take_while(|_| find(0, 0) == owed).count();
    assert_eq!(looks as i64, MOST_LATE * ONE_LATE_OF / LOOK_IS_WORTH - 1);
}

#[test]
fn latency_throttle_pauses_while_useless_and_retries_later() {
    let qos = Qos { latency_us: 100, ..NONE };
    let mut standing = ThrottleState::default();
    // Whether others are still throttled for it after `looks` looks, each with ten requests of this mean latency.
    let mut asks = |held: bool, looks: u64, late: u64, mean_us: u64| {
        let seen = Demand { asking: 1, requests: 10, late, took_us: 10 * mean_us, ..Demand::default() };
        (0..looks).map(|_| standing.find(qos, &seen, held, LOOK_EVERY_US).asks).last()
    };
    assert_eq!(asks(false, 20, 10, 400), Some(true));
    // Half the latency is worth it, though most are late, for as long as that lasts.
    assert_eq!(asks(true, 100, 6, 200), Some(true));
    assert_eq!(asks(true, TRIES + 1, 6, 210), Some(false));
    // Without throttling it is no worse: nothing was lost.
    assert_eq!(asks(false, 100, 10, 400), Some(false));
    // The latency without throttling becomes worse.
    assert_eq!(asks(false, 2 * SURE * SAMPLE / 10, 10, 500), Some(true));
    // Half as many late ones are worth it as well.
    assert_eq!([asks(false, 200, 4, 90), asks(true, 100, 2, 90)], [Some(true); 2]);
    // The first looks count requests that were submitted before throttling.
    assert_eq!([asks(false, 200, 4, 90), asks(true, TRIES, 10, 900)], [Some(true); 2]);
    assert_eq!(asks(true, 100, 2, 90), Some(true));
    // That it is of no use holds for some time.
    assert_eq!([asks(false, 200, 4, 90), asks(true, 2 * TRIES, 3, 90)], [Some(true), Some(false)]);
    assert_eq!(asks(false, BELIEVED_US / LOOK_EVERY_US - 1, 4, 90), Some(false));
    assert_eq!(asks(false, 1, 4, 90), Some(true));
    // The same while others are throttled for another client.
    assert_eq!(asks(true, 3 * TRIES, 4, 90), Some(false));
    assert_eq!(asks(true, BELIEVED_US / LOOK_EVERY_US, 4, 90), Some(true));
}

#[test]
fn throttled_client_keeps_rate_and_release_is_immediate() {
    let mut hold = RateLimit { rate: Some(8000), ..RateLimit::default() };
    let (mut now_us, mut gone) = (SECOND_US, 0);
    while now_us < 2 * SECOND_US {
        // Sleepers wake up late.
        now_us += hold.wait_us(now_us) + 70;
        hold.goes(8, now_us, SLACK_US);
        gone += 8;
    }
    assert!((7990..=8020).contains(&gone), "{gone}");
    assert!(hold.wait_us(now_us) > 900);
    hold.rate = None;
    assert_eq!(hold.wait_us(now_us), 0);
    // Credit is bounded by the slack.
    let mut hold = RateLimit { rate: Some(8000), ..RateLimit::default() };
    hold.goes(8, 50 * SECOND_US, SLACK_US);
    hold.goes(8, 100 * SECOND_US, SLACK_US);
    assert_eq!(hold.wait_us(100 * SECOND_US), 0);
    hold.goes(8, 100 * SECOND_US, SLACK_US);
    assert_eq!(hold.wait_us(100 * SECOND_US), 1000);
    // Without slack two requests are never admitted at once.
    let mut hold = RateLimit { rate: Some(8000), ..RateLimit::default() };
    hold.goes(8, 50 * SECOND_US, 0);
    assert_eq!(hold.wait_us(50 * SECOND_US), 1000);
}

#[test]
fn demand_counts_completed_requests_and_busy_time() {
    let qos = Qos { latency_us: 100, ..NONE };
    let mut demand = Demand::default();
    demand.asked(10);
    demand.asked(20);
    demand.answered(qos, 3, 100, 30);
    demand.answered(qos, 4, 101, 60);
    let seen = demand.seen(100);
    assert_eq!((seen.requests, seen.blocks, seen.late, seen.busy_us), (2, 7, 1, 50));
    demand.asked(150);
    assert_eq!(demand.seen(200).busy_us, 50);
    // A request that has not completed is demand all the time.
    assert_eq!(demand.seen(300).busy_us, 100);
    demand.answered(qos, 1, 5, 310);
    assert_eq!((demand.is_asking(), demand.seen(400).busy_us), (false, 10));
}

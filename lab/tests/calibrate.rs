//! The predictions of the emulated drives stay within the bounds of their rows.

use lab::calibrate::{CalibrationRow, TOLERANCE_PERCENT, rows};

#[test]
fn calibration_errors_stay_within_bounds_of_rows() {
    let rows = rows().unwrap();
    let off: Vec<&CalibrationRow> = rows.iter().filter(|row| !row.holds()).collect();
    assert!(off.is_empty(), "{off:#?}");
    for row in &rows {
        let wider = row.bound_percent > TOLERANCE_PERCENT;
        assert_eq!(wider, row.miss.is_some(), "a wider bound has a reason, and only that: {row:?}");
    }
    // With more misses the model would not fit.
    let misses = rows.iter().filter(|row| row.error_percent.abs() > TOLERANCE_PERCENT).count();
    assert!(misses * 5 < rows.len(), "{misses} of {} rows are missed", rows.len());
}

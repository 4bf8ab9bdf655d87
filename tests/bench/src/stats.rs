//! The statistics of samples.

/// Returns the interpolated value below which the share `q` (0 to 1) of the samples lies. Returns NaN for no samples.
pub(crate) fn quantile(samples: &[f64], q: f64) -> f64 {
    let mut sorted = samples.to_vec();
    sorted.sort_by(f64::total_cmp);
    let Some(last) = sorted.len().checked_sub(1) else {
        return f64::NAN;
    };
    let position = q * last as f64;
    let at = |index: f64| sorted.get(index as usize).copied().unwrap_or(f64::NAN);
    let (low, high) = (at(position.floor()), at(position.ceil()));
    low + (high - low) * position.fract()
}

/// Returns the median of the samples.
pub(crate) fn median(samples: &[f64]) -> f64 {
    quantile(samples, 0.5)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles() {
        let samples = [4.0, 1.0, 3.0, 2.0];
        assert_eq!(median(&samples), 2.5);
        assert_eq!(quantile(&samples, 0.0), 1.0);
        assert_eq!(quantile(&samples, 0.25), 1.75);
        assert_eq!(quantile(&samples, 1.0), 4.0);
        assert_eq!(median(&[7.0]), 7.0);
        assert!(median(&[]).is_nan());
    }
}

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

/// Returns the exponent `b` of the curve `y = a·x^b` that fits the points best: the least squares of the logarithms.
/// Points at 0 have none. Returns `None` for fewer than two values of `x`.
pub(crate) fn exponent(points: impl Iterator<Item = (f64, f64)>) -> Option<f64> {
    let logs: Vec<(f64, f64)> =
        points.filter(|(x, y)| *x > 0.0 && *y > 0.0).map(|(x, y)| (x.ln(), y.ln())).collect();
    let count = logs.len() as f64;
    let middle = |values: &dyn Fn(&(f64, f64)) -> f64| logs.iter().map(values).sum::<f64>() / count;
    let (x, y) = (middle(&|point| point.0), middle(&|point| point.1));
    let spread: f64 = logs.iter().map(|point| (point.0 - x).powi(2)).sum();
    let common: f64 = logs.iter().map(|point| (point.0 - x) * (point.1 - y)).sum();
    (spread > 0.0).then(|| common / spread)
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

    #[test]
    fn exponents() {
        let fit = |points: &[(f64, f64)]| exponent(points.iter().copied());
        let square = fit(&[(0.0, 7.0), (1.0, 3.0), (10.0, 300.0), (1000.0, 3e6)]).unwrap();
        assert!((square - 2.0).abs() < 1e-9, "{square}");
        assert!(fit(&[(1.0, 5.0), (100.0, 5.0)]).unwrap().abs() < 1e-9);
        assert_eq!((fit(&[]), fit(&[(3.0, 1.0)]), fit(&[(3.0, 1.0), (3.0, 2.0)])), (None, None, None));
    }
}

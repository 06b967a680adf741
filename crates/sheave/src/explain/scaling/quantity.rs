//! Quantities of Kubernetes: `3`, `500m`, `1.5k`, `2Ki`, `1e3`.
//!
//! Source: `k8s.io/apimachinery/pkg/api/resource`, `Quantity`.

/// Suffixes with their factors; the longer ones first.
const SUFFIXES: [(&str, f64); 15] = [
    ("Ki", 1024.0),
    ("Mi", 1_048_576.0),
    ("Gi", 1_073_741_824.0),
    ("Ti", 1_099_511_627_776.0),
    ("Pi", 1_125_899_906_842_624.0),
    ("Ei", 1_152_921_504_606_846_976.0),
    ("n", 1e-9),
    ("u", 1e-6),
    ("m", 1e-3),
    ("k", 1e3),
    ("M", 1e6),
    ("G", 1e9),
    ("T", 1e12),
    ("P", 1e15),
    ("E", 1e18),
];

/// Returns the number; `None`: it is no quantity.
pub(super) fn parse(text: &str) -> Option<f64> {
    let suffix = SUFFIXES
        .iter()
        .find_map(|(suffix, factor)| text.strip_suffix(suffix).map(|number| (number, *factor)));
    let (number, factor) = suffix.unwrap_or((text, 1.0));
    let is_number = |byte: u8| byte.is_ascii_digit() || b".+-eE".contains(&byte);
    let number = number.bytes().all(is_number).then(|| number.parse::<f64>().ok()).flatten()?;
    Some(number * factor).filter(|number| number.is_finite())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_suffixes_or_exponents() {
        for (text, number) in [
            ("3", 3.0),
            ("2.8", 2.8),
            ("500m", 0.5),
            ("1500m", 1.5),
            ("2k", 2000.0),
            ("2Ki", 2048.0),
            ("1e3", 1000.0),
            ("1E", 1e18),
            ("-1", -1.0),
        ] {
            let found = parse(text).unwrap();
            assert!((found - number).abs() < 1e-9 * number.abs(), "{text}: {found}");
        }
        for text in ["", "m", "three", "inf", "NaN", "1 m", "1e999"] {
            assert_eq!(parse(text), None, "{text}");
        }
    }
}

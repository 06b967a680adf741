//! Changes to the request that an endpoint gets.

use super::super::dialect::AnnotationDialect;
use super::value::{parse_bool, parse_path};

/// An annotation about changes to requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) enum RewriteAnnotation {
    Target,
    UsesPatterns,
}

/// Changes to the requests of an Ingress.
#[derive(Default)]
pub(in super::super) struct IngressRewrite {
    /// The rewrite of paths.
    pub(in super::super) target: Option<RewriteTarget>,
    /// True if paths of `ImplementationSpecific` are regular expressions.
    pub(in super::super) uses_patterns: bool,
}

/// The new path of a request to an endpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in super::super) enum RewriteTarget {
    /// This path, regardless of the requested one.
    FullPath(String),
    /// This path in place of the path of the rule.
    Prefix(String),
    /// A path with captures of a regular expression: `$1`, `$2`.
    Captures(String),
}

impl IngressRewrite {
    pub(super) fn add(
        &mut self,
        dialect: AnnotationDialect,
        setting: RewriteAnnotation,
        value: &str,
    ) -> Result<(), String> {
        match setting {
            RewriteAnnotation::Target => self.target = Some(parse_target(dialect, value)?),
            RewriteAnnotation::UsesPatterns => self.uses_patterns = parse_bool(value)?,
        }
        Ok(())
    }
}

fn parse_target(dialect: AnnotationDialect, value: &str) -> Result<RewriteTarget, String> {
    if dialect == AnnotationDialect::HaproxyIngress {
        return parse_path(value).map(RewriteTarget::Prefix);
    }
    let has_captures = value.contains('$');
    if has_captures {
        Ok(RewriteTarget::Captures(value.to_owned()))
    } else {
        parse_path(value).map(RewriteTarget::FullPath)
    }
}

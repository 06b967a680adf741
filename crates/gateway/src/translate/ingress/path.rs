//! Paths of an Ingress: their matches and rewrites.

use super::annotation::{IngressRewrite, RewriteTarget};
use crate::objects::{
    IngressPath, IngressPathType, PathMatch, PathMatchType, PathModifier, PathModifierType,
};

/// The match of a path, and its rewrite.
pub(super) struct PathTranslation {
    pub(super) path: PathMatch,
    pub(super) rewrite: Option<PathModifier>,
}

/// Suffixes of regular expressions that capture all that follows a prefix, with the capture.
const CAPTURE_SUFFIXES: [(&str, &str); 3] =
    [("(/|$)(.*)", "$2"), ("/(.*)", "$1"), ("/?(.*)", "$1")];

/// Translates a path, or returns why its annotations cannot be applied.
pub(super) fn translate_path(
    asked: &IngressPath,
    settings: &IngressRewrite,
) -> Result<PathTranslation, String> {
    let text = asked.path.as_deref().filter(|path| !path.is_empty()).unwrap_or("/");
    let is_exact = asked.path_type == IngressPathType::Exact;
    let has_patterns =
        settings.uses_patterns || matches!(settings.target, Some(RewriteTarget::Captures(_)));
    let is_pattern = !is_exact && has_patterns && is_expression(text);
    let kind = match (is_pattern, is_exact) {
        (true, _) => PathMatchType::RegularExpression,
        (false, true) => PathMatchType::Exact,
        (false, false) => PathMatchType::PathPrefix,
    };
    // Regular expressions of nginx match at the beginning of a path, and ignore case.
    let value = if is_pattern { format!("(?i:{text}).*") } else { text.to_owned() };
    let path = PathMatch { kind, value };
    let modifier = match &settings.target {
        None => return Ok(PathTranslation { path, rewrite: None }),
        Some(RewriteTarget::Captures(target)) => return capture_rewrite(text, target),
        Some(RewriteTarget::Prefix(target)) if kind == PathMatchType::PathPrefix => {
            prefix_modifier(target)
        }
        Some(RewriteTarget::FullPath(target) | RewriteTarget::Prefix(target)) => {
            full_path_modifier(target)
        }
    };
    Ok(PathTranslation { path, rewrite: Some(modifier) })
}

/// Translates a rewrite by captures if it replaces a prefix, as nearly all do.
fn capture_rewrite(text: &str, target: &str) -> Result<PathTranslation, String> {
    let parts = CAPTURE_SUFFIXES.iter().find_map(|(tail, capture)| {
        let start = text.strip_suffix(tail)?;
        let target = target.strip_suffix(capture)?;
        let is_all = *tail != "/?(.*)" || start.is_empty();
        let is_plain = !is_expression(start) && !target.contains('$') && target.ends_with('/');
        (is_all && is_plain).then_some((start, target))
    });
    let Some((start, target)) = parts else {
        return Err(format!(
            "cannot be rewritten to {target}: only a prefix can be replaced, as with path /a(/|$)(.*) and \
             target /b/$2; an HTTPRoute may express it"
        ));
    };
    let value = if start.is_empty() { "/" } else { start }.to_owned();
    let path = PathMatch { kind: PathMatchType::PathPrefix, value };
    Ok(PathTranslation { path, rewrite: Some(prefix_modifier(target)) })
}

fn is_expression(text: &str) -> bool {
    text.contains(['(', '[', '{', '*', '+', '?', '^', '$', '|', '\\'])
}

fn full_path_modifier(target: &str) -> PathModifier {
    PathModifier {
        kind: PathModifierType::ReplaceFullPath,
        replace_full_path: Some(target.to_owned()),
        replace_prefix_match: None,
    }
}

fn prefix_modifier(target: &str) -> PathModifier {
    PathModifier {
        kind: PathModifierType::ReplacePrefixMatch,
        replace_full_path: None,
        replace_prefix_match: Some(target.to_owned()),
    }
}

//! Directives of nginx's rewrite module (`if`, `rewrite`, `return`, `set`, `break`), as request rules.

/// Regular expressions of nginx that mean something else here.
mod pattern;

use super::parse::SnippetDirective;
use super::{CONTENT_TYPE, REDIRECTS, return_arguments};
use crate::objects::{
    ConditionalRedirect, DirectResponse, PathReplacement, RequestCondition, RequestRule,
    RewriteContinuation, VariableAssignment,
};
use crate::snapshot::DirectResponseSettings;
use crate::translate::request_rules::request_rules;
use pattern::check_pattern;

/// Largest number of rules of a TrafficPolicy.
const MAX_RULES: usize = 32;
/// Largest size of a word that becomes a part of a rule, in bytes.
const MAX_WORD_BYTES: usize = 1024;
/// nginx's variable for the requested path and query.
const REQUEST_URI: &str = "$request_uri";

/// True if the directive is one of nginx's rewrite module other than `return`.
pub(super) fn is_rule(directive: &SnippetDirective) -> bool {
    ["if", "rewrite", "set", "break"].contains(&&*directive.name)
}

/// True if these directives need request rules: a single `return` without variables does not.
pub(super) fn are_needed(directives: &[SnippetDirective]) -> bool {
    let has_variable = |directive: &SnippetDirective| {
        let text = directive.arguments.last().map(String::as_str).unwrap_or_default();
        text.strip_suffix(REQUEST_URI).unwrap_or(text).contains('$') || text == REQUEST_URI
    };
    directives.iter().any(|it| is_rule(it) || it.name == "return" && has_variable(it))
}

/// Returns the rules of these directives, which are executed in their order.
///
/// # Errors
/// If one is not supported; the message names its line.
pub(super) fn rules(
    directives: &[SnippetDirective],
    content_type: Option<&str>,
) -> Result<Vec<RequestRule>, String> {
    let mut writer = RuleWriter {
        content_type: content_type.unwrap_or(CONTENT_TYPE),
        rules: Vec::new(),
        sources: Vec::new(),
    };
    for directive in directives.iter().filter(|it| is_rule(it) || it.name == "return") {
        match &directive.block {
            None => writer.add(directive, &[])?,
            Some(block) => {
                let condition = condition(&directive.arguments);
                let condition = condition.map_err(|message| fault(directive, &message))?;
                writer.add_block(block, &condition)?;
            }
        }
    }
    writer.checked()
}

/// Writes rules.
struct RuleWriter<'s> {
    content_type: &'s str,
    rules: Vec<RequestRule>,
    /// The directive of each rule.
    sources: Vec<&'s SnippetDirective>,
}

impl<'s> RuleWriter<'s> {
    /// Adds the directives of an `if`. nginx checks its condition once, a rule checks it for each directive.
    fn add_block(
        &mut self,
        block: &'s [SnippetDirective],
        condition: &[RequestCondition],
    ) -> Result<(), String> {
        let mut changed: Vec<String> = Vec::new();
        for directive in block {
            let is_changed = |it: &RequestCondition| changed.contains(&it.value.to_lowercase());
            if condition.iter().any(is_changed) {
                return Err(fault(directive, "follows a change of what its `if` depends on"));
            }
            let has_group =
                |text: &String| text.contains('$') && "123456789".chars().any(|it| has(text, it));
            let is_rewrite = directive.name == "rewrite";
            if !is_rewrite
                && changed.iter().any(|it| it == "$uri")
                && directive.arguments.iter().any(has_group)
            {
                return Err(fault(directive, "has a group of a pattern before a `rewrite`"));
            }
            self.add(directive, condition)?;
            match &*directive.name {
                "rewrite" => {
                    let names = ["$uri", "$document_uri", "$args", "$query_string", "$is_args"];
                    changed.extend(names.map(str::to_owned));
                    let values = condition.iter().map(|it| it.value.to_lowercase());
                    changed.extend(values.filter(|it| it.starts_with("$arg_")));
                }
                "set" => changed.extend(directive.arguments.first().map(|it| it.to_lowercase())),
                _ => {}
            }
        }
        Ok(())
    }

    fn add(
        &mut self,
        directive: &'s SnippetDirective,
        when: &[RequestCondition],
    ) -> Result<(), String> {
        let action = self.action(directive).map_err(|message| fault(directive, &message))?;
        if directive.arguments.iter().any(|it| it.len() > MAX_WORD_BYTES) {
            let message = format!("has a word of more than {MAX_WORD_BYTES} bytes");
            return Err(fault(directive, &message));
        }
        if self.rules.len() == MAX_RULES {
            return Err(fault(
                directive,
                &format!("is one rule too many: {MAX_RULES} are allowed"),
            ));
        }
        self.rules.push(RequestRule { when: when.to_vec(), ..action });
        self.sources.push(directive);
        Ok(())
    }

    fn action(&self, directive: &SnippetDirective) -> Result<RequestRule, String> {
        let arguments = &*directive.arguments;
        match (&*directive.name, arguments) {
            ("break", []) => Ok(RequestRule { forward: true, ..Default::default() }),
            ("set", [variable, value]) => {
                let variable = variable.strip_prefix('$').ok_or("must begin with `$`")?.to_owned();
                let set = Some(VariableAssignment { variable, value: value.clone() });
                Ok(RequestRule { set, ..Default::default() })
            }
            ("rewrite", [pattern, replacement]) => rewrite(pattern, replacement, None),
            ("rewrite", [pattern, replacement, flag]) => rewrite(pattern, replacement, Some(flag)),
            ("return", arguments) => self.response(arguments),
            ("break" | "set" | "rewrite", other) => {
                Err(format!("does not have {} arguments", other.len()))
            }
            _ => Err("is not supported in `if`".to_owned()),
        }
    }

    fn response(&self, arguments: &[String]) -> Result<RequestRule, String> {
        let (status, text) = return_arguments(arguments)?;
        if REDIRECTS.contains(&status) {
            let url = text.ok_or("must have a URL")?.to_owned();
            let redirect = ConditionalRedirect { pattern: None, url, status, append_query: false };
            return Ok(RequestRule { redirect: Some(redirect), ..Default::default() });
        }
        let body = text.filter(|it| !it.is_empty()).map(str::to_owned);
        if body.as_ref().is_some_and(|it| it.contains('$')) {
            return Err("has a text with a variable, which is not supported".to_owned());
        }
        let content_type = self.content_type.to_owned();
        let respond = Some(DirectResponse { status, body, body_ref: None, content_type });
        Ok(RequestRule { respond, ..Default::default() })
    }

    /// Returns the rules, if a TrafficPolicy may have them.
    fn checked(self) -> Result<Vec<RequestRule>, String> {
        let respond = |_: &DirectResponse, _: &str| Ok(DirectResponseSettings::Invalid);
        let Err(faults) = request_rules(&self.rules, respond) else { return Ok(self.rules) };
        let first = faults.into_iter().next();
        let Some(first) = first else { return Ok(self.rules) };
        let number = first.field.split(['[', ']']).nth(1).and_then(|it| it.parse::<usize>().ok());
        let source = number.and_then(|number| self.sources.get(number));
        Err(source.map_or_else(|| first.message.clone(), |it| fault(it, &first.message)))
    }
}

fn fault(directive: &SnippetDirective, message: &str) -> String {
    format!("line {}: `{}` {message}", directive.line, directive.name)
}

/// True if the text has the group with this digit.
fn has(text: &str, digit: char) -> bool {
    text.contains(&format!("${digit}")) || text.contains(&format!("${{{digit}}}"))
}

fn rewrite(pattern: &str, replacement: &str, flag: Option<&str>) -> Result<RequestRule, String> {
    check_pattern(pattern)?;
    let is_url = ["http://", "https://", "$scheme"].iter().any(|it| replacement.starts_with(it));
    let status = match flag {
        Some("permanent") => Some(301),
        Some("redirect") => Some(302),
        Some("last" | "break") | None if is_url => Some(302),
        Some("last" | "break") | None => None,
        Some(other) => return Err(format!("has the unknown flag {other}")),
    };
    let pattern = pattern.to_owned();
    if let Some(status) = status {
        let url = replacement.strip_suffix('?');
        let append_query = url.is_none();
        let url = url.unwrap_or(replacement).to_owned();
        let redirect = ConditionalRedirect { pattern: Some(pattern), url, status, append_query };
        return Ok(RequestRule { redirect: Some(redirect), ..Default::default() });
    }
    if replacement.contains('%') {
        return Err("has a `%` in the new path, which nginx escapes".to_owned());
    }
    let then = match flag {
        Some("last") => RewriteContinuation::Route,
        Some("break") => RewriteContinuation::Forward,
        _ => RewriteContinuation::NextRule,
    };
    let rewrite = PathReplacement { pattern, replacement: replacement.to_owned(), then };
    Ok(RequestRule { rewrite: Some(rewrite), ..Default::default() })
}

/// Translates the condition of an `if`.
fn condition(arguments: &[String]) -> Result<Vec<RequestCondition>, String> {
    let mut words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let without_parentheses = words
        .first()
        .and_then(|it| it.strip_prefix('('))
        .zip(words.last().filter(|it| it.ends_with(')')));
    if without_parentheses.is_none() {
        return Err("must have a condition in parentheses".to_owned());
    }
    if let Some(first) = words.first_mut() {
        *first = &first[1..];
    }
    if let Some(last) = words.last_mut() {
        *last = &last[..last.len() - 1];
    }
    // Parentheses may be words of their own.
    if words.len() > 1 && words.first() == Some(&"") {
        words.remove(0);
    }
    if words.len() > 1 && words.last() == Some(&"") && arguments.last().is_some_and(|it| it == ")")
    {
        words.pop();
    }
    let variable = words.first().filter(|it| it.starts_with('$'));
    let value = variable.ok_or("has a condition that is not supported")?.to_string();
    let plain = RequestCondition { value, ..Default::default() };
    let equals = |text: &str, negate| RequestCondition {
        equals: Some(text.to_owned()),
        negate,
        ..plain.clone()
    };
    match words[1..] {
        // A variable is true unless it is empty or 0.
        [] => Ok(vec![equals("", true), equals("0", true)]),
        ["=" | "!=", text] if text.contains('$') => {
            Err("compares with a variable, which is not supported".to_owned())
        }
        [operator @ ("=" | "!="), text] => Ok(vec![equals(text, operator == "!=")]),
        [operator @ ("~" | "~*" | "!~" | "!~*"), pattern] => {
            check_pattern(pattern)?;
            Ok(vec![RequestCondition {
                matches: Some(pattern.to_owned()),
                ignore_case: operator.ends_with('*'),
                negate: operator.starts_with('!'),
                ..plain
            }])
        }
        _ => Err("has a condition that is not supported".to_owned()),
    }
}

#[cfg(test)]
mod tests;

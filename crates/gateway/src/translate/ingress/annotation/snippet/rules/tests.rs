//! Directives of nginx's rewrite module, and the rules that they become.

use super::super::parse::parse;
use super::*;

fn rules_of(snippet: &str) -> Result<Vec<RequestRule>, String> {
    let directives = parse(snippet)?;
    assert!(are_needed(&directives), "{snippet}");
    rules(&directives, None)
}

/// Returns the rules in short.
fn texts(snippet: &str) -> Vec<String> {
    let condition = |it: &RequestCondition| {
        let not = if it.negate { "!" } else { "" };
        let case = if it.ignore_case { "*" } else { "" };
        match (&it.equals, &it.matches) {
            (Some(text), _) => format!("{} {not}= {text:?}", it.value),
            (None, Some(pattern)) => format!("{} {not}~{case} {pattern}", it.value),
            (None, None) => unreachable!("a condition compares"),
        }
    };
    let text = |rule: RequestRule| {
        let RequestRule { when, set, rewrite, redirect, respond, forward } = rule;
        let set = set.map(|it| format!("set {} {:?}", it.variable, it.value));
        let rewrite =
            rewrite.map(|it| format!("rewrite {} {} {:?}", it.pattern, it.replacement, it.then));
        let redirect = redirect.map(|it| {
            let query = if it.append_query { " + query" } else { "" };
            format!("{} {} {}{query}", it.status, it.pattern.unwrap_or_default(), it.url)
        });
        let respond = respond.map(|it| format!("{} {:?}", it.status, it.body));
        let forward = forward.then(|| "forward".to_owned());
        let action = set.or(rewrite).or(redirect).or(respond).or(forward).unwrap();
        let when: Vec<_> = when.iter().map(condition).collect();
        if when.is_empty() { action } else { format!("{}: {action}", when.join(", ")) }
    };
    rules_of(snippet).unwrap_or_else(|it| panic!("{snippet}: {it}")).into_iter().map(text).collect()
}

#[test]
fn directives_become_rules_in_their_order() {
    for (snippet, expected) in [
        ("rewrite ^/old/(.*)$ /new/$1 permanent;", &["301 ^/old/(.*)$ /new/$1 + query"][..]),
        ("rewrite ^(/app)$ $1/ redirect;", &["302 ^(/app)$ $1/ + query"]),
        ("rewrite ^ https://$host$request_uri? permanent;", &["301 ^ https://$host$request_uri"]),
        ("rewrite ^/a http://b.example/ last;", &["302 ^/a http://b.example/ + query"]),
        ("rewrite ^/a /b last;", &["rewrite ^/a /b Route"]),
        ("rewrite ^/a /b? break;", &["rewrite ^/a /b? Forward"]),
        ("rewrite ^/a /b; break;", &["rewrite ^/a /b NextRule", "forward"]),
        ("return 301 https://$host$request_uri;", &["301  https://$host$request_uri"]),
        (
            "if ($host = 'a.example') { return 301 https://b.example$request_uri; }",
            &["$host = \"a.example\": 301  https://b.example$request_uri"],
        ),
        ("if ( $http_x ) { return 403; }", &["$http_x != \"\", $http_x != \"0\": 403 None"]),
        (
            "if ($request_method !~ ^(GET|HEAD)$ ) { return 405; } return 404 no;",
            &["$request_method !~ ^(GET|HEAD)$: 405 None", "404 Some(\"no\")"],
        ),
        (
            "if ($http_user_agent ~* \"(bot|crawler)\") { return 403 'go away'; }",
            &["$http_user_agent ~* (bot|crawler): 403 Some(\"go away\")"],
        ),
        (
            "if ($host ~* ^www\\.(.*)) { set $h $1; rewrite ^(.*) http://$h$1 permanent; }",
            &[
                "$host ~* ^www\\.(.*): set h \"$1\"",
                "$host ~* ^www\\.(.*): 301 ^(.*) http://$h$1 + query",
            ],
        ),
        (
            "set $f \"\"; if ($args) { set $f A; } if ($f = A) { return 403; }",
            &["set f \"\"", "$args != \"\", $args != \"0\": set f \"A\"", "$f = \"A\": 403 None"],
        ),
    ] {
        assert_eq!(texts(snippet), expected, "{snippet}");
    }
}

#[test]
fn too_much_is_an_error() {
    let many = "rewrite ^/a /b;\n".repeat(33);
    assert_eq!(
        rules_of(&many).unwrap_err(),
        "line 33: `rewrite` is one rule too many: 32 are allowed"
    );
    let long = format!("rewrite ^/a /{};", "b".repeat(1024));
    assert!(rules_of(&long).unwrap_err().contains("a word of more than 1024 bytes"));
    let bomb = "rewrite ^/(((((((((a{90}){90}){90}){90}){90}){90}){90}){90}){90}) /b;";
    let message = rules_of(bomb).unwrap_err();
    assert!(message.contains("block") || message.contains("regular expression"), "{message}");
    let bomb = "rewrite \"^/((a{90}){90}){90}\" /b;";
    let message = rules_of(bomb).unwrap_err();
    assert!(message.starts_with("line 1: `rewrite` is not a supported regular"), "{message}");
}

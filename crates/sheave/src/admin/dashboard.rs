//! The dashboard: a web page that shows this API. Its files are part of the binary; `make gen` writes them from
//! `dashboard/`.
//!
//! Everything that it shows it asks of `/api/v1`. It loads nothing from other hosts, and runs no script but its own.

use axum::Router;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Redirect, Response};
use axum::routing::get;

/// Rules for the browser: scripts, styles and requests of this server alone, and no other page around it.
const CONTENT_SECURITY_POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; \
     img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// A file of the dashboard.
#[derive(Clone, Copy)]
struct DashboardFile {
    content_type: &'static str,
    bytes: &'static [u8],
    /// Changes with the content.
    tag: u64,
}

const PAGE: DashboardFile =
    DashboardFile::new("text/html; charset=utf-8", include_bytes!("dashboard/index.html"));
const SCRIPT: DashboardFile =
    DashboardFile::new("text/javascript; charset=utf-8", include_bytes!("dashboard/app.js"));
const STYLE: DashboardFile =
    DashboardFile::new("text/css; charset=utf-8", include_bytes!("dashboard/app.css"));
const ICON: DashboardFile =
    DashboardFile::new("image/svg+xml", include_bytes!("dashboard/icon.svg"));

/// Returns the paths of the dashboard.
pub(super) fn router<S: Clone + Send + Sync + 'static>() -> Router<S> {
    let file = |file: DashboardFile| get(async move |headers: HeaderMap| file.response(&headers));
    Router::new()
        // Relative, so that it is right behind a path prefix too.
        .route("/dashboard", get(async || Redirect::permanent("dashboard/")))
        .route("/dashboard/", file(PAGE))
        .route("/dashboard/app.js", file(SCRIPT))
        .route("/dashboard/app.css", file(STYLE))
        .route("/dashboard/icon.svg", file(ICON))
}

impl DashboardFile {
    const fn new(content_type: &'static str, bytes: &'static [u8]) -> Self {
        Self { content_type, bytes, tag: checksum(bytes) }
    }

    fn response(self, headers: &HeaderMap) -> Response {
        let tag = format!("\"{:016x}\"", self.tag);
        let known = headers.get_all(header::IF_NONE_MATCH).iter();
        let is_known = known.filter_map(|it| it.to_str().ok()).any(|it| it.contains(&tag));
        let fields = [
            (header::CONTENT_TYPE, self.content_type),
            // The browser asks each time, and gets a short answer: a new Sheave has a new page.
            (header::CACHE_CONTROL, "no-cache"),
            (header::CONTENT_SECURITY_POLICY, CONTENT_SECURITY_POLICY),
            (header::REFERRER_POLICY, "no-referrer"),
        ];
        let tag = [(header::ETAG, tag)];
        match is_known {
            true => (StatusCode::NOT_MODIFIED, fields, tag).into_response(),
            false => (fields, tag, self.bytes).into_response(),
        }
    }
}

/// Returns the 64-bit FNV-1a checksum.
const fn checksum(bytes: &[u8]) -> u64 {
    let mut sum = 0xcbf2_9ce4_8422_2325_u64;
    let mut index = 0;
    while index < bytes.len() {
        sum = (sum ^ bytes[index] as u64).wrapping_mul(0x0000_0100_0000_01b3);
        index += 1;
    }
    sum
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The whole of the dashboard, before compression.
    const MAX_BYTES: usize = 300 * 1024;

    #[test]
    fn files_are_small_and_name_no_other_host() {
        let files = [PAGE, SCRIPT, STYLE, ICON];
        let bytes: usize = files.iter().map(|file| file.bytes.len()).sum();
        assert!(bytes <= MAX_BYTES, "{bytes} bytes");
        for file in files {
            let text = std::str::from_utf8(file.bytes).unwrap();
            let hosts = text.match_indices("://").map(|(index, _)| &text[index..]);
            // Names of XML namespaces, and the example of the form.
            let is_known =
                |it: &&str| it.starts_with("://www.w3.org/") || it.starts_with("://shop.example");
            let foreign: Vec<&str> =
                hosts.filter(|it| !is_known(it)).map(|it| it.get(..40).unwrap_or(it)).collect();
            assert!(foreign.is_empty(), "{foreign:?}");
        }
    }

    #[test]
    fn page_has_no_inline_script_or_style() {
        let page = std::str::from_utf8(PAGE.bytes).unwrap();
        assert!(!page.contains(" style=") && !page.contains("<style"), "{page}");
        assert!(!page.contains("<script>") && !page.contains(" onload="), "{page}");
        assert!(page.contains("src=\"app.js\"") && page.contains("href=\"app.css\""), "{page}");
    }

    #[test]
    fn known_tag_is_answered_without_a_body() {
        let response = SCRIPT.response(&HeaderMap::new());
        assert_eq!(response.status(), StatusCode::OK);
        let mut headers = HeaderMap::new();
        headers.insert(header::IF_NONE_MATCH, response.headers()[header::ETAG].clone());
        assert_eq!(SCRIPT.response(&headers).status(), StatusCode::NOT_MODIFIED);
        assert_eq!(STYLE.response(&headers).status(), StatusCode::OK);
    }
}

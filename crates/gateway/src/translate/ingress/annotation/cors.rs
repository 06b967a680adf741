//! Cross-origin requests (CORS).
//!
//! ingress-nginx: `enable-cors` adds header fields for allowed origins and answers OPTIONS with 204. Its defaults are
//! all origins, six methods, nine header fields, credentials, and 20 days.

use super::value::{parse_bool, parse_list, parse_number};
use crate::objects::{CorsFilter, CorsOrigin, FieldName};

const METHODS: &[&str] = &["GET", "PUT", "POST", "DELETE", "PATCH", "OPTIONS"];
const HEADERS: &[&str] = &[
    "DNT",
    "Keep-Alive",
    "User-Agent",
    "X-Requested-With",
    "If-Modified-Since",
    "Cache-Control",
    "Content-Type",
    "Range",
    "Authorization",
];
const MAX_AGE: u32 = 1_728_000;
/// Largest number of origins, methods or header fields.
const MAX_ENTRIES: usize = 64;

/// An annotation about cross-origin requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) enum CorsAnnotation {
    Enabled,
    Credentials,
    ExposeHeaders,
    Headers,
    MaxAge,
    Methods,
    Origins,
}

/// The CORS settings of an Ingress.
pub(super) struct CorsAnnotations {
    is_enabled: bool,
    filter: CorsFilter,
}

impl Default for CorsAnnotations {
    fn default() -> Self {
        let names = |names: &[&str]| names.iter().map(|it| FieldName((*it).to_owned())).collect();
        let filter = CorsFilter {
            allow_origins: vec![CorsOrigin("*".to_owned())],
            allow_credentials: true,
            allow_methods: names(METHODS),
            allow_headers: names(HEADERS),
            expose_headers: Vec::new(),
            max_age: MAX_AGE,
        };
        Self { is_enabled: false, filter }
    }
}

impl CorsAnnotations {
    pub(super) fn add(&mut self, setting: CorsAnnotation, value: &str) -> Result<(), String> {
        let filter = &mut self.filter;
        match setting {
            CorsAnnotation::Enabled => self.is_enabled = parse_bool(value)?,
            CorsAnnotation::Credentials => filter.allow_credentials = parse_bool(value)?,
            CorsAnnotation::ExposeHeaders => filter.expose_headers = parse_names(value)?,
            CorsAnnotation::Headers => filter.allow_headers = parse_names(value)?,
            // A negative number turns caching off, as 0 does.
            CorsAnnotation::MaxAge if value == "-1" => filter.max_age = 0,
            CorsAnnotation::MaxAge => filter.max_age = parse_number(value, 0, 2_147_483_647)?,
            CorsAnnotation::Methods => filter.allow_methods = parse_names(value)?,
            // Like an annotation that is not there: all origins.
            CorsAnnotation::Origins if value.is_empty() => {}
            CorsAnnotation::Origins => {
                // After an error no origin is allowed, rather than all of them.
                filter.allow_origins.clear();
                let origins = parse_list(value, MAX_ENTRIES)?;
                let origins = origins.into_iter().map(|it| parse_origin(&it.to_lowercase()));
                filter.allow_origins = origins.collect::<Result<_, _>>()?;
            }
        }
        Ok(())
    }

    /// Returns the filter, if it is on. For all origins nginx answers `*`, with which browsers reject requests with
    /// credentials: they are not allowed.
    pub(super) fn into_filter(mut self) -> Option<CorsFilter> {
        self.filter.allow_credentials &= self.filter.allow_origins.iter().all(|it| it.0 != "*");
        self.is_enabled.then_some(self.filter)
    }
}

fn parse_names(value: &str) -> Result<Vec<FieldName>, String> {
    let name = |name| FieldName::parse(name).map_err(|message| format!("{message}, is {name}"));
    parse_list(value, MAX_ENTRIES)?.into_iter().map(name).collect()
}

fn parse_origin(value: &str) -> Result<CorsOrigin, String> {
    CorsOrigin::parse(value).map_err(|message| format!("{message}, is {value}"))
}

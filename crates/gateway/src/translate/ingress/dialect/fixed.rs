//! Annotations for behaviour that Sheave always has: the values that ask for it, and the message for others. The empty
//! value is none that an author writes.

use super::AnnotationKey::{self, Only};

pub(super) const ACCESS_LOG: AnnotationKey =
    Only(&["true"], "is ignored: the access log has the requests of all routes, or of none");
pub(super) const AUTH_REDIRECT: AnnotationKey =
    Only(&[""], "is ignored: X-Auth-Request-Redirect is the path and query of the request");
pub(super) const CANARY_AFFINITY: AnnotationKey = Only(
    &["legacy"],
    "is ignored: each request is assigned to the main Ingress or the canary anew, with affinity too",
);
pub(super) const CLUSTER_ADDRESS: AnnotationKey = Only(
    &["false"],
    "is ignored: requests are sent to the endpoints of the Service, not to its cluster IP",
);
pub(super) const COOKIES: AnnotationKey =
    Only(&["off"], "is not supported: the cookies of endpoints are not changed");
pub(super) const COOKIE_ON_FAILURE: AnnotationKey = Only(
    &["true"],
    "is ignored: if the endpoint of a client cannot serve, the client gets another one and a new cookie",
);
pub(super) const COOKIE_SAME_SITE_NONE: AnnotationKey = Only(
    &["false"],
    "is not supported: SameSite of the affinity cookie is the same for all browsers",
);
pub(super) const HASH_SUBSET: AnnotationKey =
    Only(&["false"], "is not supported: a key leads to one endpoint, not to a subset");
pub(super) const HTTP_VERSION: AnnotationKey =
    Only(&["1.1"], "is ignored: endpoints get HTTP/1.1, or HTTP/2 by `backend-protocol`");
pub(super) const LOCATIONS: AnnotationKey =
    Only(&["off", "default"], "is not supported: `Location` of endpoints is not changed");
pub(super) const MIRROR_BODY: AnnotationKey =
    Only(&["on", "true"], "is not supported: copies of requests have the body of the request");
pub(super) const MIRROR_HOST: AnnotationKey =
    Only(&[""], "is not supported: copies of requests have the host of the request");
pub(super) const REDIRECT_SLASH: AnnotationKey =
    Only(&["true"], "is ignored: the redirect to HTTPS keeps a slash at the end of the path");
pub(super) const RELATIVE_REDIRECTS: AnnotationKey =
    Only(&["false"], "is not supported: `Location` of redirects has the scheme and host");
pub(super) const RESPONSE_RATE: AnnotationKey =
    Only(&["0"], "is not supported: the rate of responses in bytes is not limited");
pub(super) const RETRY_TIME: AnnotationKey = Only(
    &["0"],
    "is ignored: `timeouts.request` of a BackendPolicy limits the time of a request with its retries",
);
pub(super) const UNLIMITED_CLIENTS: AnnotationKey =
    Only(&[""], "is not supported: the requests of these networks are limited too");

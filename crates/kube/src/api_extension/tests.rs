//! Tests against an API server in memory.

use serde_json::json;

use super::*;
use crate::api_server::ApiServer;

const CONFIG_MAPS: &str = "/api/v1/configmaps";
const API_SERVICES: &str = "/apis/apiregistration.k8s.io/v1/apiservices";
const NAME: &str = "v1beta1.external.metrics.k8s.io";

fn put_settings(server: &ApiServer, data: serde_json::Value) {
    let metadata =
        json!({ "namespace": AUTHENTICATION_NAMESPACE, "name": AUTHENTICATION_CONFIG_MAP });
    let object =
        json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data });
    server.put(CONFIG_MAPS, object);
}

fn complete() -> serde_json::Value {
    json!({
        "requestheader-client-ca-file": "-----BEGIN CERTIFICATE-----",
        "requestheader-allowed-names": "[\"front-proxy-client\"]",
        "requestheader-username-headers": "[\"X-Remote-User\"]",
        "requestheader-group-headers": "[\"X-Remote-Group\"]",
        "requestheader-extra-headers-prefix": "[\"X-Remote-Extra-\"]",
    })
}

#[tokio::test]
async fn settings_of_the_proxy_are_read_whole_or_not_at_all() {
    let server = ApiServer::default();
    put_settings(&server, complete());
    let settings = server.cluster().front_proxy_settings().await.unwrap();
    assert_eq!(settings.allowed_names, ["front-proxy-client"]);
    assert_eq!(settings.user_fields, ["X-Remote-User"]);
    assert_eq!(settings.extra_prefixes, ["X-Remote-Extra-"]);
    for name in complete().as_object().unwrap().keys() {
        for value in [None, Some("")] {
            let mut data = complete();
            match value {
                None => _ = data.as_object_mut().unwrap().remove(name),
                Some(text) => data[name] = text.into(),
            }
            put_settings(&server, data);
            let error = server.cluster().front_proxy_settings().await.unwrap_err().to_string();
            assert!(error.contains(name), "{name}: {error}");
        }
    }
}

#[tokio::test]
async fn bundle_is_written_only_to_an_own_api_service() {
    let server = ApiServer::default();
    let register = async |bundle: &str| {
        server.cluster().register_api(NAME, "sheave", "sheave-metrics", bundle).await
    };
    let missing = register("one").await.unwrap_err().to_string();
    assert!(missing.contains("does not exist"), "{missing}");

    let put = |service: serde_json::Value| {
        let spec = json!({
            "group": "external.metrics.k8s.io", "version": "v1beta1", "service": service,
            "groupPriorityMinimum": 100, "versionPriority": 100,
        });
        let kind = json!({
            "apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService",
            "metadata": { "name": NAME }, "spec": spec,
        });
        server.put(API_SERVICES, kind);
    };
    put(json!({ "namespace": "keda", "name": "keda-operator-metrics-apiserver" }));
    let foreign = register("one").await.unwrap_err().to_string();
    assert!(foreign.contains("Service keda/keda-operator-metrics-apiserver"), "{foreign}");
    let held = || server.object(API_SERVICES, "", NAME).unwrap()["spec"]["caBundle"].clone();
    assert!(held().is_null());

    put(json!({ "namespace": "sheave", "name": "sheave-metrics" }));
    register("one").await.unwrap();
    assert_eq!(held(), "b25l");
    register("two").await.unwrap();
    assert_eq!(held(), "dHdv");
}

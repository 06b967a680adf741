//! Load that an xDS client reports: it does so to one replica, and each replica answers an autoscaler for all.

use serde_json::json;
use tests::Result;
use tests::configuration::SERVICE;

use super::ReplicaGroup;
use super::demand::wait_for_demand;
use crate::xds::client::LoadReporter;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn load_of_an_xds_client_is_demand_at_each_replica() -> Result {
    let group = ReplicaGroup::start_with_xds(json!({})).await?;
    let cluster = format!("default/{SERVICE}:80");
    let reporter = LoadReporter::start(&group.replicas[0], &cluster, 5).await?;
    let _other = LoadReporter::start(&group.replicas[1], &cluster, 2).await?;
    for replica in &group.replicas {
        wait_for_demand(replica, 7.0).await?;
    }
    drop(reporter);
    for replica in &group.replicas {
        wait_for_demand(replica, 2.0).await?;
    }
    Ok(())
}

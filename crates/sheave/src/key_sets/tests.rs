//! Tests of key sets over hours, in virtual time.

use std::collections::VecDeque;

use gateway::jwks::JwksUrl;
use serde_json::json;

use super::*;

/// A server whose answers a test sets; the last one is repeated.
#[derive(Clone, Default)]
struct ScriptedServer(Arc<Mutex<(VecDeque<FetchResult>, Vec<Instant>)>>);

impl ScriptedServer {
    fn set(&self, answers: impl IntoIterator<Item = FetchResult>) {
        self.0.lock().unwrap().0 = answers.into_iter().collect();
    }

    fn answer(&self) -> FetchResult {
        let (answers, times) = &mut *self.0.lock().unwrap();
        times.push(Instant::now());
        match answers.len() {
            0 => Err("nothing is scripted".to_owned()),
            1 => answers[0].clone(),
            _ => answers.pop_front().expect("there are several"),
        }
    }

    fn fetches(&self) -> usize {
        self.0.lock().unwrap().1.len()
    }

    fn watcher(&self) -> KeySetWatcher {
        let server = self.clone();
        let fetch = Arc::new(move |_: Arc<JwksSubscription>| {
            let server = server.clone();
            Box::pin(async move { server.answer() }) as PendingFetch
        });
        let (report, _) = watch::channel(ProcessReport::new());
        KeySetWatcher::with_fetch(fetch, SharedFilter::default(), report)
    }
}

fn subscription(interval: u64, max_age: u64) -> Arc<JwksSubscription> {
    Arc::new(JwksSubscription {
        url: JwksUrl::parse("https://a.test/keys").unwrap(),
        refresh_interval: Duration::from_secs(interval),
        max_age: Duration::from_secs(max_age),
        is_filtered: true,
    })
}

fn keys(id: &str) -> JsonWebKeySet {
    let key = json!({ "kty": "OKP", "crv": "Ed25519", "kid": id,
        "x": "11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo" });
    JsonWebKeySet::parse(json!({ "keys": [key] }).to_string().as_bytes()).unwrap()
}

fn watch_one(watcher: &mut KeySetWatcher, subscription: &Arc<JwksSubscription>) {
    let wanted = BTreeSet::from([Arc::clone(subscription)]);
    watcher.watch_sets(wanted, &AddressFilter::default());
}

/// Returns the ID of the only key, and the problem.
fn state(watcher: &KeySetWatcher) -> (Option<String>, Option<String>) {
    let mut states = watcher.states().into_values();
    let state = states.next().unwrap_or_default();
    assert!(states.next().is_none());
    let id = state.keys.and_then(|it| it.keys[0].id.as_deref().map(str::to_owned));
    (id, state.problem)
}

fn known(id: &str) -> (Option<String>, Option<String>) {
    (Some(id.to_owned()), None)
}

#[tokio::test(start_paused = true)]
async fn key_set_is_fetched_again_after_its_interval() {
    let server = ScriptedServer::default();
    server.set([Ok(keys("a")), Ok(keys("b"))]);
    let mut watcher = server.watcher();
    watch_one(&mut watcher, &subscription(300, 3600));
    watcher.wait_for_first_sets().await;
    assert_eq!(state(&watcher), known("a"));
    let begun = Instant::now();
    watcher.changed().await;
    assert_eq!(state(&watcher), known("b"));
    let took = begun.elapsed().as_secs();
    assert!((300..=330).contains(&took), "{took}");
    assert!(timeout(Duration::from_secs(10_000), watcher.changed()).await.is_err());
}

#[tokio::test(start_paused = true)]
async fn key_set_is_kept_while_it_cannot_be_fetched_until_it_is_too_old() {
    let server = ScriptedServer::default();
    server.set([Ok(keys("a")), Err("down".to_owned())]);
    let mut watcher = server.watcher();
    watch_one(&mut watcher, &subscription(300, 3600));
    watcher.wait_for_first_sets().await;
    let fetched = Instant::now();
    watcher.changed().await;
    assert_eq!(state(&watcher), (Some("a".to_owned()), Some("down".to_owned())));
    watcher.changed().await;
    assert_eq!(state(&watcher), (None, Some("down".to_owned())));
    assert_eq!(fetched.elapsed().as_secs(), 3600);
    // At least once a minute in between.
    assert!(server.fetches() > 50, "{}", server.fetches());
    server.set([Ok(keys("a"))]);
    watcher.changed().await;
    assert_eq!(state(&watcher), known("a"));
}

#[tokio::test(start_paused = true)]
async fn unknown_keys_cause_an_early_fetch_but_not_many() {
    let server = ScriptedServer::default();
    server.set([Ok(keys("a")), Ok(keys("b"))]);
    let mut watcher = server.watcher();
    let subscription = subscription(300, 3600);
    watch_one(&mut watcher, &subscription);
    watcher.wait_for_first_sets().await;
    let begun = Instant::now();
    let stale = BTreeSet::from([subscription]);
    watcher.fetch_early(&stale);
    watcher.changed().await;
    assert_eq!((state(&watcher), begun.elapsed()), (known("b"), MIN_PAUSE));
    let before = server.fetches();
    for _ in 0..100 {
        watcher.fetch_early(&stale);
        assert!(timeout(Duration::from_millis(500), watcher.changed()).await.is_err());
    }
    let fetches = server.fetches() - before;
    assert!((9..=11).contains(&fetches), "{fetches}");
}

#[tokio::test(start_paused = true)]
async fn a_changed_interval_keeps_the_keys() {
    let server = ScriptedServer::default();
    server.set([Ok(keys("a")), Err("down".to_owned())]);
    let mut watcher = server.watcher();
    watch_one(&mut watcher, &subscription(300, 3600));
    watcher.wait_for_first_sets().await;
    watch_one(&mut watcher, &subscription(60, 600));
    assert_eq!(state(&watcher), known("a"));
    watcher.watch_sets(BTreeSet::new(), &AddressFilter::default());
    assert!(watcher.states().is_empty());
}

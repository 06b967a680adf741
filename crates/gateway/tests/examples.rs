//! Every example translates without a problem and has listeners, endpoints and targets.

use std::fs;
use std::path::Path;

use gateway::snapshot::{Backend, EndpointSource, RuleTarget};
use gateway::{TranslationSettings, parse, translate};

#[test]
fn every_example_translates_without_a_problem() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples");
    let paths = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let mut examples = 0;
    for path in paths.filter(|path| path.extension().is_some_and(|extension| extension == "yaml")) {
        let (objects, mut problems) =
            parse(&fs::read_to_string(&path).unwrap(), path.to_str().unwrap());
        let translation = translate(&objects, &TranslationSettings::default());
        problems.extend(translation.problems);
        assert_eq!(problems, [], "{}", path.display());
        let snapshot = translation.snapshot;
        assert!(!snapshot.listeners.is_empty(), "{}", path.display());
        // Backends with endpoints from DNS get them when the example runs.
        let has_endpoints =
            |it: &Backend| it.source != EndpointSource::Slices || !it.endpoints.is_empty();
        assert!(snapshot.backends.iter().all(has_endpoints), "{}", path.display());
        let mut targets = snapshot.rules.iter().flat_map(|rule| &rule.targets);
        assert!(targets.all(|share| share.target != RuleTarget::Unresolved), "{}", path.display());
        examples += 1;
    }
    assert!(examples >= 23);
}

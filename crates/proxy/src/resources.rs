//! Budgets of the process, memory and file descriptors, which all workers share.

use std::sync::Arc;

use crate::descriptors::DescriptorBudget;
use crate::memory::MemoryBudget;

/// Budgets of the process.
#[derive(Debug, Default)]
pub(crate) struct ResourceBudgets {
    pub(crate) memory: MemoryBudget,
    pub(crate) descriptors: DescriptorBudget,
}

impl ResourceBudgets {
    /// Creates the budgets of a process with these limits; `None`: there is no limit.
    pub(crate) fn new(memory_bytes: Option<u64>, descriptors: Option<u64>) -> Arc<Self> {
        let memory = MemoryBudget::new(memory_bytes);
        let descriptors = DescriptorBudget::new(descriptors);
        memory.log();
        descriptors.log();
        Arc::new(Self { memory, descriptors })
    }
}

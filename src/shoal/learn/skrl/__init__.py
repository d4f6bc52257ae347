"""skrl's agents as learners."""

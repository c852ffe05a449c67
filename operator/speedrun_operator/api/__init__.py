"""The resource as users write and read it: names, models, phases, conditions and the CRD. Imports nothing of ours."""

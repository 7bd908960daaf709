"""The Grafana dashboards, as code: ``make docs`` writes them to deploy/dashboards."""

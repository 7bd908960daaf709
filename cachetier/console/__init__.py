"""The console for people: what its pages show, of status and catalog, and their templates.

Everything here is pure: ``doors/http/console`` asks the node, renders and answers.
"""

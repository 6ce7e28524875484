# Shortcuts. `make` alone prints this list; packaging/check.py does the work and makes the virtual environment.
CHECK = python3 packaging/check.py
#: The oldest Python that packaging/check.py has made an environment for.
PYTHON = $(firstword $(sort $(wildcard .venv-3.*/bin/python)))

.DEFAULT_GOAL := help
.PHONY: help setup check slow unit test lint serve bench docs

help: ## this list
	@sed -n 's/^\([a-z]*\):[a-z ]*## /  make \1\t/p' $(MAKEFILE_LIST) | expand -t 16

setup: ## the virtual environment in .venv-3.10, from the hash-pinned lock
	@$(CHECK) --version

check: ## everything before a merge: format, lint, types, all tests
	$(CHECK)

slow: ## check, and the suites that take minutes, on two versions of Python
	$(CHECK) --slow

unit: ## the tests that need no server
	$(CHECK) tests/unit -q -n 2

test: ## one file or folder: make test FILE=tests/unit/test_retry.py
	$(CHECK) -q $(FILE)

lint: setup ## format and lint in place, then types
	$(PYTHON) -m ruff format .
	$(PYTHON) -m ruff check --fix .
	$(PYTHON) -m mypy

serve: setup ## a jobd on ./.jobd at http://127.0.0.1:7433; Ctrl-C drains it
	$(PYTHON) -m jobd serve --data-dir .jobd

bench: setup ## jobs per second end to end on this machine
	$(PYTHON) -m jobd bench e2e

docs: setup ## the documentation as a site, in site/
	NO_MKDOCS_2_WARNING=1 $(PYTHON) -m mkdocs build

# Shortcuts; packaging/check.py makes the environments and is all that the check needs.
PYTHON = .venv-3.10/bin/python

.PHONY: check slow unit test serve bench

check: ## format, lint, types, tests
	python3 packaging/check.py

slow: ## the same with the suites that take minutes
	python3 packaging/check.py --slow

unit: ## the tests without servers
	python3 packaging/check.py tests/unit -q -n 2

test: ## make test FILE=tests/unit/test_retry.py
	python3 packaging/check.py -q $(FILE)

serve: ## a jobd on ./.jobd, at http://127.0.0.1:7433
	$(PYTHON) -m jobd serve --data-dir .jobd

bench: ## jobs end to end on this machine
	$(PYTHON) -m jobd bench e2e

#!/usr/bin/env bash
# The HTTP API with curl: examples/curl.sh [URL]
set -euo pipefail
url="${1:-http://127.0.0.1:8000}"
json='Content-Type: application/json'

echo "# Models"
curl --fail-with-body -sS "$url/v1/models"

echo -e "\n# A chat"
curl --fail-with-body -sS "$url/v1/chat/completions" -H "$json" -d '{
  "model": "smollm2",
  "messages": [{"role": "user", "content": "What is the capital of France?"}],
  "max_tokens": 32
}'

echo -e "\n# The same, streamed"
curl --fail-with-body -sSN "$url/v1/chat/completions" -H "$json" -d '{
  "model": "smollm2",
  "messages": [{"role": "user", "content": "What is the capital of France?"}],
  "max_tokens": 32,
  "stream": true
}'

echo "# Our own API: which version answered, and where the time went"
curl --fail-with-body -sS "$url/api/v1/generate" -H "$json" -d '{
  "prompt": "Water mills were used to",
  "max_tokens": 32
}'

echo -e "\n# Health"
curl --fail-with-body -sS "$url/health/ready"
echo

# bash probe.sh [livez|readyz]: asks this machine's health endpoint; for the checks of containers, which ask every
# second while services start. In bash alone: a Python process would take twenty times the processor time.
# Ends with 0 where the answer is 200, and prints it.
port=${TRINITY_BUS_HEALTH__PORT:?is not set: this process serves no health endpoint}
exec 3<>"/dev/tcp/127.0.0.1/$port" || exit 1
printf 'GET /%s HTTP/1.0\r\n\r\n' "${1:-readyz}" >&3
read -r -t 5 -u 3 _ status _ || exit 1
while read -r -t 5 -u 3 header && [ "$header" != $'\r' ]; do :; done
read -r -t 5 -u 3 answer
echo "$answer"
[ "$status" = 200 ]

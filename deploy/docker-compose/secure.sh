#!/usr/bin/env bash
# Makes what compose.secure.yaml needs, in secrets/ beside this file: an authority, the broker's certificate, and a
# password for each user. Needs openssl, or Docker where that is missing. Nothing is sent anywhere.
#
#   ./secure.sh                        # for clients on this machine, and those that reach it at KAFKA_HOST of .env
#   ./secure.sh mesh.example.org       # and for those that begin at this name or address
#
#   ca.pem             the authority's certificate: what every client trusts. The only file here that is no secret
#   ca.key             the authority's key: signs the certificates below, and is needed for nothing else. Keep it offline
#   compose.env        for docker compose: certificates, keys, passwords
#   operator.env       for programs on this machine: set -a; . secrets/operator.env; trinity-bus status
#   producer.env       likewise, for programs that send tasks and batches of their own
#   admin.env          likewise, as the mesh's administrator: topics and offsets
#   producer.properties  for Kafka's own console tools
#
# Run again, it renews the certificates and keeps authority and passwords. To change those too, remove secrets/ first.
set -euo pipefail
umask 077

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
out=${SECRETS_DIR:-$here/secrets}
users=(coordinator explorer trainer taskset gateway producer operator admin)
setting() { local value=${!1:-}; echo "${value:-$(sed -n "s/^$1=//p" "$here/.env")}"; }

mkdir -p "$out"
if ! command -v openssl > /dev/null; then
  exec docker run --rm --network none --user "$(id -u):$(id -g)" -v "$here:/here:ro" -v "$out:/out" \
    -e SECRETS_DIR=/out -e "KAFKA_PORT=$(setting KAFKA_PORT)" -e "KAFKA_HOST=$(setting KAFKA_HOST)" -e "NAMESPACE=$(setting NAMESPACE)" \
    -e "HOST_DIR=$out" --entrypoint bash "$(setting PYTHON_IMAGE)" /here/secure.sh "$@"
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# How long certificates hold, in days.
authority_days=3650
certificate_days=397

new_key() { openssl genpkey -algorithm EC -pkeyopt ec_paramgen_curve:P-256 -out "$1" 2> /dev/null; }

if [ ! -s "$out/ca.key" ]; then
  new_key "$out/ca.key"
  printf '[req]\ndistinguished_name=n\nx509_extensions=e\nprompt=no\n[n]\nCN=trinity-bus\n[e]\n' > "$work/ca.conf"
  printf 'basicConstraints=critical,CA:TRUE\nkeyUsage=critical,keyCertSign\nsubjectKeyIdentifier=hash\n' >> "$work/ca.conf"
  openssl req -x509 -new -key "$out/ca.key" -days $authority_days -config "$work/ca.conf" -out "$out/ca.pem"
  chmod 644 "$out/ca.pem"
fi

# certificate NAME ALTERNATIVES USES: $work/NAME.key and $work/NAME.pem, signed by the authority.
certificate() {
  new_key "$work/$1.key"
  openssl req -new -key "$work/$1.key" -subj "/CN=$1" -out "$work/$1.csr"
  { echo "keyUsage=critical,digitalSignature"; echo "extendedKeyUsage=$3"; echo "authorityKeyIdentifier=keyid"
    [ -z "$2" ] || echo "subjectAltName=$2"; } > "$work/ext"
  openssl x509 -req -in "$work/$1.csr" -CA "$out/ca.pem" -CAkey "$out/ca.key" -days $certificate_days \
    -set_serial "0x$(openssl rand -hex 16)" -extfile "$work/ext" -out "$work/$1.pem" 2> /dev/null
}

host=$(setting KAFKA_HOST)
names=DNS:kafka,DNS:localhost,IP:127.0.0.1
for name in "$host" "$@"; do
  if [[ $name =~ ^[0-9.]+$|: ]]; then names+=,IP:$name; else names+=,DNS:$name; fi
done
# The broker is its own client: brokers and controllers know each other by their certificates.
certificate kafka "$names" serverAuth,clientAuth
# Who sets up users and rights, before there is any user.
certificate root "" clientAuth

# One line, with \n between the lines: what Kafka's properties and printf %b both make whole again.
pem() { awk '{ printf "%s\\n", $0 }' "$1"; }

upper() { tr '[:lower:]' '[:upper:]' <<< "$1"; }
password_of() { [ ! -s "$out/compose.env" ] || sed -n "s/^$(upper "$1")_PASSWORD=//p" "$out/compose.env"; }

{
  echo "# Made by secure.sh."
  for user in "${users[@]}"; do
    kept=$(password_of "$user")
    echo "$(upper "$user")_PASSWORD=${kept:-$(openssl rand -hex 24)}"
  done
  for name in GATEWAY_API_KEYS EXPLORER_HTTP_KEY CONSOLE_TOKEN; do
    kept=$([ ! -s "$out/compose.env" ] || sed -n "s/^$name=//p" "$out/compose.env")
    echo "$name=${kept:-$(openssl rand -hex 24)}"
  done
  echo "CA_CERTIFICATE='$(pem "$out/ca.pem")'"
  for name in kafka root; do
    echo "$(upper $name)_CERTIFICATE='$(pem "$work/$name.pem")'"
    echo "$(upper $name)_KEY='$(pem "$work/$name.key")'"
  done
} > "$work/compose.env"
mv "$work/compose.env" "$out/compose.env"

port=$(setting KAFKA_PORT)
namespace=$(setting NAMESPACE)
for user in producer operator admin; do
  {
    echo "TRINITY_BUS_KAFKA__BOOTSTRAP_SERVERS=${1:-$host}:$port"
    echo "TRINITY_BUS_MESH__NAMESPACE=$namespace"
    echo "TRINITY_BUS_KAFKA__SECURITY_PROTOCOL=SASL_SSL"
    echo "TRINITY_BUS_KAFKA__SASL_USERNAME=$namespace.$user"
    echo "TRINITY_BUS_KAFKA__SASL_PASSWORD=$(password_of "$user")"
    echo "TRINITY_BUS_KAFKA__SSL_CAFILE=${HOST_DIR:-$out}/ca.pem"
  } > "$out/$user.env"
done
{
  echo "security.protocol=SASL_SSL"
  echo "sasl.mechanism=SCRAM-SHA-512"
  echo "sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule required" \
    "username=\"$namespace.producer\" password=\"$(password_of producer)\";"
  echo "ssl.truststore.type=PEM"
  echo "ssl.truststore.certificates=$(pem "$out/ca.pem")"
} > "$out/producer.properties"

echo "${HOST_DIR:-$out}: authority, certificates until $(openssl x509 -in "$work/kafka.pem" -noout -enddate | cut -d= -f2), ${#users[@]} passwords"

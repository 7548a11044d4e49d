#!/bin/sh
# A week of backups of a team's servers in the folder BACKUP, and the way back. First the databases, then the buckets, which
# then hold all that the databases name. infra/README.md says who calls it.
set -eu
folder=${BACKUP:-/backup} day=$(date +%u)
# rclone's name for the S3; keys and region come from AWS_..., what libpq needs from PG...
export RCLONE_S3_PROVIDER=Other RCLONE_S3_ENV_AUTH=true RCLONE_S3_ENDPOINT="${AWS_ENDPOINT_URL:-}"
case ${1:-} in
  databases)
    mkdir -p "$folder/$day"
    for name in mlflow prefect; do
      pg_dump --format=custom --no-owner --file="$folder/$day/$name.new" "$name"
      mv "$folder/$day/$name.new" "$folder/$day/$name.dump"
    done
    echo "mlflow and prefect are in $folder/$day"
    ;;
  buckets)  # what goes, by `sweetrl prune` or an accident, stays beside it for a week
    for name in ${BUCKETS:-mlflow dvc}; do
      [ ! -d "$folder/$name-gone-$day" ] || rm -r "$folder/$name-gone-$day"
      rclone sync ":s3:$name" "$folder/$name" --backup-dir "$folder/$name-gone-$day"
    done
    echo "the buckets ${BUCKETS:-mlflow dvc} are in $folder"
    ;;
  restore-buckets)  # nothing in them is deleted
    for name in ${BUCKETS:-mlflow dvc}; do
      for place in "$folder/$name-gone-"* "$folder/$name"; do
        [ ! -d "$place" ] || rclone copy "$place" ":s3:$name"
      done
    done
    ;;
  restore-databases)  # with the day, 1 (Monday) to 7; the servers do not run meanwhile
    for name in mlflow prefect; do
      pg_restore --clean --if-exists --no-owner --exit-on-error --single-transaction --dbname="$name" "$folder/$2/$name.dump"
    done
    ;;
  *)
    echo "error: $0: say databases or buckets, restore-buckets, or restore-databases DAY" >&2
    exit 1
    ;;
esac

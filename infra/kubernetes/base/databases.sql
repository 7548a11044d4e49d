-- Run once, when the volume is empty.
CREATE DATABASE mlflow;
CREATE DATABASE prefect;

"""The model in use: what a trained model says of new samples, here or where heterps is not installed.

source.py    which model a path stands for: a run, a checkpoint or an export
predict.py   scores of data sets, row group by row group; results.py writes them
predict_export.py   the same by an export
saved.py     heterps.save, and loading what it wrote into a model
vectors.py   vectors of ids, and the nearest of them
load.py      heterps.load: a trained model in Python
export.py    a folder that scores without heterps, and increments of it; graph.py, export_files.py, row_record.py
serve.py     an HTTP server for an export, which follows a running job or a folder of increments
app.py       the server's application; listen.py its process, payload.py rows and scores as JSON or Arrow
batching.py  requests joined into batches; scoring.py scores them by one version, open_scorer.py opens the export
follow.py    versions of a run while it trains; following.py keeps a server at the newest, from run_versions.py or
             increment_folder.py, as far as same_inputs.py allows
towers.py    exports of models with two towers           export_quality.py   how good an export is
model_columns.py  which columns a model reads            serve_metrics.py    what Prometheus is told
metrics_socket.py  where Prometheus asks `--metrics`
score.py     what is in that folder: it imports nothing of heterps but score_files.py, score_inputs.py and score_rows.py

Read first: load.py, then export.py and score.py.
"""

"""Access to the tables' Delta logs and files without Spark.

| subject | modules |
|---|---|
| the store and its errors | `location`, `files`, `object_files`, `store_answers`, `failures` |
| a table's log | `delta_log`, `load_log`, `standing`, `datasets`, `remembered` |
| which files have which windows, in both layouts | `holdings`, `contents`, `flat`, `separating`, `row_copies`, `measuring` |
| columns of a file and of a log | `column_bounds`, `field_ids`, `parquet`, `data_files`, `rows` |
| commits: of a load, and of each kind of maintenance | `commits`; `merging`, `expiring`, `migration`, `redaction` |
| files to delete | `vacuum`, `leftovers` |
| kinds of tables | `new_tables`, `raw_table`, `decoded_table`, `dead_letter_table`, `dead_letters` |
| kinds of tables made from decoded ones | `changes_table`, `state_table`, `derived_table` |

`merging`, `expiring` and `migration` make commits. The modules of the same or a similar name in `windows.maintain`
decide what to commit, and `engines.merging` computes the merged files.
"""

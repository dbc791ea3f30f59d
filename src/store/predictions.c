/* Forecasts as rows: in the course of a run, and added to the finished file later. */
#include "store/store_impl.h"

#include <stdlib.h>
#include <string.h>

static enum up_category largest_category(const struct up_store_prediction *p)
{
    int largest = 0;
    for (int i = 1; i < UP_CATEGORY_COUNT; i++)
        if (p->category_bytes[i] > p->category_bytes[largest]) largest = i;
    return (enum up_category)largest;
}

// Nothing where there are no bytes.
static int put_category(sqlite3_stmt *row, int64_t id, const char *name, int64_t bytes)
{
    const int64_t numbers[] = {id, bytes};
    if (!bytes) return SQLITE_DONE;
    return up_row_run(row, UP_ROW_PREDICTION_CATEGORY,
                      &(struct up_row){.texts = &name, .numbers = numbers});
}

int up_prediction_run(sqlite3 *db, sqlite3_stmt *row, sqlite3_stmt *category,
                      const struct up_store_prediction *p)
{
    const char *texts[] = {p->options, p->config_hash, up_phase_names[p->phase],
                           up_category_names[largest_category(p)]};
    const int64_t numbers[] = {p->peak_bytes, p->host_bytes};
    int code =
        up_row_run(row, UP_ROW_PREDICTION,
                   &(struct up_row){.texts = texts, .numbers = numbers, .reals = &p->step_s});
    int64_t id = sqlite3_last_insert_rowid(db);
    for (int i = 0; i < UP_CATEGORY_COUNT && code == SQLITE_DONE; i++)
        code = put_category(category, id, up_category_names[i], p->category_bytes[i]);
    if (code == SQLITE_DONE) code = put_category(category, id, UP_STORE_BESIDE, p->beside_bytes);
    return code;
}

/* --- A finished file -----------------------------------------------------------------------------
 */

// For writing, with nothing in the file's schema to be run.
static sqlite3 *open_to_append(const char *path)
{
    sqlite3 *db = NULL;
    char *name = up_store_file_name(path);
    int code = name ? sqlite3_open_v2(name, &db, SQLITE_OPEN_READWRITE, NULL) : SQLITE_NOMEM;
    if (code == SQLITE_OK) {
        sqlite3_db_config(db, SQLITE_DBCONFIG_DEFENSIVE, 1, NULL);
        sqlite3_db_config(db, SQLITE_DBCONFIG_TRUSTED_SCHEMA, 0, NULL);
        sqlite3_db_config(db, SQLITE_DBCONFIG_ENABLE_TRIGGER, 0, NULL);
    }
    bool writable = code == SQLITE_OK && sqlite3_db_readonly(db, "main") == 0;
    if (!writable) {
        sqlite3_close(db);
        db = NULL;
    }
    free(name);
    return db;
}

// What a run foretold of itself stays; of another configuration the last forecast counts, which may
// be for another machine.
static const char stands_sql[] =
    "SELECT 1 FROM prediction WHERE options = ?1 AND config_hash = ?2 AND (peak_bytes = ?3 AND"
    " host_bytes IS ?4 AND step_s IS ?5 OR"
    " config_hash = (SELECT value FROM meta WHERE key = 'config_hash'))";
static const char *const forget_sql[] = {
    "DELETE FROM prediction_category WHERE prediction_id IN"
    " (SELECT id FROM prediction WHERE options = ?1 AND config_hash = ?2)",
    "DELETE FROM prediction WHERE options = ?1 AND config_hash = ?2"};

// With as many of ?1 to ?5 as `sql` has.
static int run_about(sqlite3 *db, const char *sql, const struct up_store_prediction *p)
{
    sqlite3_stmt *statement = NULL;
    sqlite3_prepare_v2(db, sql, -1, &statement, NULL);
    sqlite3_bind_text(statement, 1, p->options, -1, SQLITE_STATIC);
    sqlite3_bind_text(statement, 2, p->config_hash, -1, SQLITE_STATIC);
    if (sqlite3_bind_parameter_count(statement) > 2) {
        sqlite3_bind_int64(statement, 3, p->peak_bytes);
        sqlite3_bind_int64(statement, 4, p->host_bytes);
        sqlite3_bind_double(statement, 5, p->step_s);
    }
    int code = sqlite3_step(statement);
    sqlite3_finalize(statement);
    return code;
}

static bool stands(sqlite3 *db, const struct up_store_prediction *p)
{
    return run_about(db, stands_sql, p) == SQLITE_ROW;
}

static bool forget(sqlite3 *db, const struct up_store_prediction *p)
{
    return run_about(db, forget_sql[0], p) == SQLITE_DONE &&
           run_about(db, forget_sql[1], p) == SQLITE_DONE;
}

static bool append(sqlite3 *db, const struct up_store_prediction *predictions, int count)
{
    sqlite3_stmt *row = up_row_prepare(db, UP_ROW_PREDICTION);
    sqlite3_stmt *category = up_row_prepare(db, UP_ROW_PREDICTION_CATEGORY);
    bool good = row && category;
    for (int i = 0; i < count && good; i++)
        good = stands(db, &predictions[i]) ||
               (forget(db, &predictions[i]) &&
                up_prediction_run(db, row, category, &predictions[i]) == SQLITE_DONE);
    sqlite3_finalize(row);
    sqlite3_finalize(category);
    return good;
}

bool up_store_append_predictions(const char *path, const struct up_store_prediction *predictions,
                                 int count)
{
    char complete[4];
    sqlite3 *db = open_to_append(path);
    if (!db) return false;
    up_store_meta_get(db, "complete", complete, sizeof complete);
    bool all = true, good = !strcmp(complete, "1");
    for (int i = 0; i < count && good; i++) all &= stands(db, &predictions[i]);
    if (good && !all) {
        good = sqlite3_exec(db, "BEGIN IMMEDIATE", NULL, NULL, NULL) == SQLITE_OK;
        good = good && append(db, predictions, count);
        good =
            sqlite3_exec(db, good ? "COMMIT" : "ROLLBACK", NULL, NULL, NULL) == SQLITE_OK && good;
    }
    sqlite3_close(db);
    return good;
}

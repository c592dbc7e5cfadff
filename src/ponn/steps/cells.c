/* The inner loops of Step B: the sums in the (action, level) cells of features, whose levels are given or are bins of
   equal width.

   They do, in the same order and precision, what encode.py (NumberFeature.codes) and tally.py (numpy_sums,
   fill_moments) define in numpy, so that their results are the same to the last bit. The package works without this
   module, only slower. Arguments are buffers of exactly the type and shape named below; nothing is read or written
   outside of them. */

#define Py_LIMITED_API 0x030B0000
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>
#include <string.h>

#define NO_LEVEL (-1)

/* Buffers ---------------------------------------------------------------------------------------------------------- */

/* A buffer of one of the given types ("fd": float or double), of so many dimensions and laid out as the flags say; 0
   with an error. */
static int get_view(PyObject *object, const char *name, const char *types, int dimensions, int flags, Py_buffer *view)
{
    if (PyObject_GetBuffer(object, view, PyBUF_FORMAT | flags) < 0)
        return 0;
    const char *format = view->format ? view->format : "B";
    if (view->ndim == dimensions && format[0] && !format[1] && strchr(types, format[0]))
        return 1;
    PyErr_Format(PyExc_TypeError, "%s has %d dimensions of type '%s'; expected are %d of type '%s'", name, view->ndim,
                 format, dimensions, types);
    PyBuffer_Release(view);
    return 0;
}

static void release(Py_buffer *views, int count)
{
    for (int i = 0; i < count; i++)
        PyBuffer_Release(&views[i]);
}

/* Sums in cells ---------------------------------------------------------------------------------------------------- */

#define CELL 3     /* numbers of a cell: sums of u, of its square and of weights */
#define STRIP 1024 /* rows whose cells are looked up at a time: they stay in the first-level cache */

/* Where the linker can choose by processor, the wider vectors of newer ones are used; results do not depend on it. */
#if defined(__x86_64__) && defined(__GLIBC__) && defined(__GNUC__) && !defined(__clang__)
#define WITH_WIDE_VECTORS __attribute__((target_clones("avx2", "default")))
#else
#define WITH_WIDE_VECTORS
#endif

/* Sums of k actions and b levels; from an action to the next there are `step` cells. */
typedef struct {
    double *cells;
    int k, b, step;
} Table;

/* What was done in some rows, and what came of it. */
typedef struct {
    const int *A;
    const double *u, *weights; /* weights may be NULL: all 1 */
} Rows;

/* Row by row; a row without a cell is left out. All sums of a cell are loaded before any is stored, so that compilers
   add them at once. */
static void add_cells(const int32_t *cells, Rows rows, Py_ssize_t first, Py_ssize_t n, Table table)
{
    const double *u = rows.u + first, *weights = rows.weights ? rows.weights + first : NULL;
    for (Py_ssize_t j = 0; j < n; j++) {
        if (cells[j] < 0)
            continue;
        double *at = table.cells + CELL * (Py_ssize_t)cells[j];
        double weighted = weights ? u[j] * weights[j] : u[j];
        double sum = at[0] + weighted, squares = at[1] + weighted * u[j];
        double weight = at[2] + (weights ? weights[j] : 1.0);
        at[0] = sum;
        at[1] = squares;
        at[2] = weight;
    }
}

/* Is any action outside of 0 to k - 1? */
WITH_WIDE_VECTORS static int outside(const int *A, Py_ssize_t n, Py_ssize_t k)
{
    int any = 0, last = (int)(k - 1);
    for (Py_ssize_t j = 0; j < n; j++)
        any |= (A[j] < 0) | (A[j] > last);
    return any;
}

/* Levels that are given -------------------------------------------------------------------------------------------- */

static int add_levels(const int16_t *levels, Rows rows, Py_ssize_t n, Table table)
{
    int32_t cells[STRIP];
    int wrong = 0;
    for (Py_ssize_t start = 0; start < n; start += STRIP) {
        Py_ssize_t size = n - start < STRIP ? n - start : STRIP;
        for (Py_ssize_t j = 0; j < size; j++) {
            int level = levels[start + j];
            wrong |= level < NO_LEVEL || level >= table.b;
            cells[j] = level < 0 || level >= table.b ? -1 : rows.A[start + j] * table.step + level;
        }
        add_cells(cells, rows, start, size, table);
    }
    return wrong;
}

/* A, u and weights of the given rows; 0 with an error, and nothing held, where they do not fit. */
static int get_rows(PyObject *A, PyObject *u, PyObject *weights, Py_buffer *views, int *count, Rows *rows)
{
    PyObject *given[] = {A, u, weights};
    static const char *const NAMES[] = {"A", "u", "weights"}, *const TYPES[] = {"i", "d", "d"};
    *count = weights == Py_None ? 2 : 3;
    for (int i = 0; i < *count; i++)
        if (!get_view(given[i], NAMES[i], TYPES[i], 1, PyBUF_C_CONTIGUOUS, &views[i])) {
            release(views, i);
            return 0;
        }
    Py_ssize_t n = views[0].shape[0];
    if (views[1].shape[0] != n || (*count == 3 && views[2].shape[0] != n)) {
        release(views, *count);
        PyErr_SetString(PyExc_ValueError, "the shapes do not belong together");
        return 0;
    }
    *rows = (Rows){views[0].buf, views[1].buf, *count == 3 ? views[2].buf : NULL};
    return 1;
}

/* A table [k, b, CELL], which may be a part of the levels of a larger one; 0 with an error, and nothing held. */
static int get_table(PyObject *object, Py_buffer *view, Table *table)
{
    if (!get_view(object, "table", "d", 3, PyBUF_STRIDES | PyBUF_WRITABLE, view))
        return 0;
    const Py_ssize_t *shape = view->shape, *strides = view->strides, cell = CELL * sizeof(double);
    Py_ssize_t k = shape[0], b = shape[1], step = k > 1 ? strides[0] / cell : b;
    int cells_fit = shape[2] == CELL && strides[2] == sizeof(double) && (b <= 1 || strides[1] == cell);
    int actions_fit = k <= 1 || (strides[0] % cell == 0 && step >= b); /* none overlap or begin within a cell */
    if (cells_fit && actions_fit && k <= INT16_MAX && b <= INT16_MAX + 1 && step <= INT32_MAX / (k > 0 ? k : 1)) {
        *table = (Table){view->buf, (int)k, (int)b, (int)step};
        return 1;
    }
    PyBuffer_Release(view);
    PyErr_SetString(PyExc_ValueError, "the shapes do not belong together");
    return 0;
}

PyDoc_STRVAR(add_rows_doc, "add_rows(levels, A, u, weights, table)\n--\n\n"
                           "Add each row to the cell of its action and level; rows of level -1 to none.\n\n"
                           "levels: int16 [n]; A: int [n]; u: double [n]; weights: double [n] or None; table: double\n"
                           "[k, b, 3], weighted sums of u and u^2, sum of weights; it may be a part of the levels of\n"
                           "a larger table.");

static PyObject *add_rows(PyObject *module, PyObject *arguments)
{
    PyObject *levels, *A, *u, *weights, *table;
    Py_buffer views[5];
    Rows rows;
    Table sums;
    int count, wrong = 0, fits;
    if (!PyArg_ParseTuple(arguments, "OOOOO:add_rows", &levels, &A, &u, &weights, &table))
        return NULL;
    if (!get_rows(A, u, weights, views, &count, &rows))
        return NULL;
    if (!get_table(table, &views[count], &sums)) {
        release(views, count);
        return NULL;
    }
    if (!get_view(levels, "levels", "h", 1, PyBUF_C_CONTIGUOUS, &views[count + 1])) {
        release(views, count + 1);
        return NULL;
    }
    Py_ssize_t n = views[0].shape[0];
    fits = views[count + 1].shape[0] == n;
    if (fits) {
        Py_BEGIN_ALLOW_THREADS;
        wrong = outside(rows.A, n, sums.k) || add_levels(views[count + 1].buf, rows, n, sums);
        Py_END_ALLOW_THREADS;
    }
    release(views, count + 2);
    if (!fits)
        return PyErr_Format(PyExc_ValueError, "the shapes do not belong together");
    if (wrong)
        return PyErr_Format(PyExc_ValueError, "a level or an action lies outside of the table");
    Py_RETURN_NONE;
}

/* Bins of equal width ---------------------------------------------------------------------------------------------- */

typedef struct {
    double low, scale, mean;
    int bins, missing;
} Bins;

/* The cell of each value, floor((x - low) scale) of its action with the end bins for what lies outside, and x - mean in
   the precision of the result. One plain loop: compilers turn it into vectors. Says whether any value is
   missing: NaN or infinite. */
#define DEFINE_PLACE(NAME, TYPE, RESULT)                                                                       \
    WITH_WIDE_VECTORS static int NAME(const TYPE *restrict x, const int *restrict A, Py_ssize_t n, Bins bins,  \
                                      int step, int32_t *restrict cells, RESULT *restrict centred)             \
    {                                                                                                          \
        const double last = bins.bins - 1, low = bins.low, scale = bins.scale;                                 \
        const RESULT mean = (RESULT)bins.mean;                                                                 \
        int missing = 0;                                                                                       \
        for (Py_ssize_t j = 0; j < n; j++) {                                                                   \
            double position = ((double)x[j] - low) * scale;                                                    \
            position = position > 0 ? position : 0;                                                            \
            cells[j] = A[j] * step + (int32_t)(position < last ? position : last);                             \
            centred[j] = (RESULT)x[j] - mean;                                                                  \
            missing |= x[j] - x[j] != 0;                                                                       \
        }                                                                                                      \
        return missing;                                                                                        \
    }                                                                                                          \
                                                                                                               \
    static void NAME##_missing(const TYPE *x, const int *A, Py_ssize_t n, Bins bins, int step, int32_t *cells, \
                               RESULT *centred)                                                                \
    {                                                                                                          \
        for (Py_ssize_t j = 0; j < n; j++)                                                                     \
            if (x[j] - x[j] != 0) {                                                                            \
                cells[j] = bins.missing < 0 ? -1 : A[j] * step + bins.missing;                                 \
                centred[j] = 0;                                                                                \
            }                                                                                                  \
    }

DEFINE_PLACE(place_floats, float, float)
DEFINE_PLACE(place_floats_in_double, float, double)
DEFINE_PLACE(place_doubles, double, double)

/* Place a strip of values; where nobody wants them centred, `centred` is room that is not looked at again. */
#define PLACE(NAME, TYPE, RESULT)                                                   \
    do {                                                                            \
        const TYPE *values = (const TYPE *)x->buf + at;                             \
        RESULT *to = centred ? (RESULT *)centred->buf + start : (RESULT *)room;     \
        if (NAME(values, rows.A + at, size, bins, table.step, cells, to))           \
            NAME##_missing(values, rows.A + at, size, bins, table.step, cells, to); \
    } while (0)

/* One feature, from the first row on: strip by strip while a strip is in the cache. */
static void add_strips(Py_buffer *x, Py_buffer *centred, Rows rows, Py_ssize_t first, Py_ssize_t n, Bins bins,
                       Table table)
{
    int32_t cells[STRIP];
    double room[STRIP];
    for (Py_ssize_t start = 0; start < n; start += STRIP) {
        Py_ssize_t size = n - start < STRIP ? n - start : STRIP, at = first + start;
        if (x->itemsize == sizeof(double))
            PLACE(place_doubles, double, double);
        else if (centred && centred->itemsize == sizeof(double))
            PLACE(place_floats_in_double, float, double);
        else
            PLACE(place_floats, float, float);
        add_cells(cells, rows, at, size, table);
    }
}

/* One feature as Python describes it: (x, low, scale, bins, missing, mean, table, centred). */
static int add_feature(PyObject *feature, Rows rows, Py_ssize_t length, Py_ssize_t first, Py_ssize_t n)
{
    PyObject *x, *table, *centred;
    Bins bins;
    Table sums;
    Py_buffer views[3];
    if (!PyArg_ParseTuple(feature, "OddiidOO;a feature", &x, &bins.low, &bins.scale, &bins.bins, &bins.missing,
                          &bins.mean, &table, &centred))
        return 0;
    int count = centred == Py_None ? 2 : 3;
    if (!get_view(x, "x", "fd", 1, PyBUF_C_CONTIGUOUS, &views[0]))
        return 0;
    if (!get_table(table, &views[1], &sums)) {
        release(views, 1);
        return 0;
    }
    if (count == 3 && !get_view(centred, "centred", "fd", 1, PyBUF_C_CONTIGUOUS | PyBUF_WRITABLE, &views[2])) {
        release(views, 2);
        return 0;
    }
    int fits = views[0].shape[0] == length && bins.bins >= 1 && bins.bins <= sums.b && bins.missing < sums.b &&
               (count == 2 || (views[2].shape[0] >= n && views[2].itemsize >= views[0].itemsize)) &&
               !outside(rows.A + first, n, sums.k);
    if (fits) {
        Py_BEGIN_ALLOW_THREADS;
        add_strips(&views[0], count == 3 ? &views[2] : NULL, rows, first, n, bins, sums);
        Py_END_ALLOW_THREADS;
    } else
        PyErr_SetString(PyExc_ValueError, "values, bins, actions, table and room for the centred values do not fit");
    release(views, count);
    return fits;
}

PyDoc_STRVAR(add_bins_doc, "add_bins(features, A, u, weights, first, last)\n--\n\n"
                           "Add the rows from first to last to the cells of their actions and bins, for many features.\n\n"
                           "features: a list of (x, low, scale, bins, missing, mean, table, centred), with x float or\n"
                           "double [n], missing the level of NaN and infinite values or -1 for none, table as for\n"
                           "add_rows, and centred None or room for x - mean of these rows (0 where missing), as wide\n"
                           "as x or wider.\n"
                           "A, u, weights: as for add_rows, of all n rows.");

static PyObject *add_bins(PyObject *module, PyObject *arguments)
{
    PyObject *features, *A, *u, *weights;
    Py_ssize_t first, last;
    Py_buffer views[3];
    Rows rows;
    int count, fine;
    if (!PyArg_ParseTuple(arguments, "O!OOOnn:add_bins", &PyList_Type, &features, &A, &u, &weights, &first,
                          &last))
        return NULL;
    if (!get_rows(A, u, weights, views, &count, &rows))
        return NULL;
    Py_ssize_t length = views[0].shape[0];
    fine = 0 <= first && first <= last && last <= length;
    if (!fine)
        PyErr_Format(PyExc_ValueError, "rows %zd to %zd are not among %zd", first, last, length);
    for (Py_ssize_t i = 0; fine && i < PyList_Size(features); i++)
        fine = add_feature(PyList_GetItem(features, i), rows, length, first, last - first);
    release(views, count);
    if (!fine)
        return NULL;
    Py_RETURN_NONE;
}

/* The module ------------------------------------------------------------------------------------------------------- */

static PyMethodDef functions[] = {{"add_rows", add_rows, METH_VARARGS, add_rows_doc},
                                  {"add_bins", add_bins, METH_VARARGS, add_bins_doc},
                                  {NULL, NULL, 0, NULL}};

static PyModuleDef_Slot slots[] = {{0, NULL}};

static struct PyModuleDef definition = {.m_base = PyModuleDef_HEAD_INIT,
                                        .m_name = "ponn.steps.cells",
                                        .m_doc = "The inner loops of Step B, compiled.",
                                        .m_methods = functions,
                                        .m_slots = slots};

PyMODINIT_FUNC PyInit_cells(void) { return PyModuleDef_Init(&definition); }

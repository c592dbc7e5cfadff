/* The inner loops of Step B: bins of equal width, and the sums in the (action, level) cells of one feature.

   Both do, in the same order and precision, what encode.py (NumberFeature.codes) and tally.py (numpy_sums) define
   in numpy, so that their results are the same to the last bit. The package works without this module, only slower.
   Arguments are buffers of exactly the type and shape named below; nothing is read or written outside of them. */

#define Py_LIMITED_API 0x030B0000
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>
#include <string.h>

#define NO_LEVEL (-1)
#define MOST_BINS INT16_MAX

/* Buffers ---------------------------------------------------------------------------------------------------------- */

/* A contiguous buffer of one of the given types ("fd": float or double) and of so many dimensions; 0 with an error. */
static int get_view(PyObject *object, const char *name, const char *types, int dimensions, int flags, Py_buffer *view)
{
    if (PyObject_GetBuffer(object, view, PyBUF_C_CONTIGUOUS | PyBUF_FORMAT | flags) < 0)
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

/* Bins of equal width ---------------------------------------------------------------------------------------------- */

/* Where the linker can choose by processor, the wider vectors of newer ones are used; results do not depend on it. */
#if defined(__x86_64__) && defined(__GLIBC__) && defined(__GNUC__) && !defined(__clang__)
#define WITH_WIDE_VECTORS __attribute__((target_clones("avx2", "default")))
#else
#define WITH_WIDE_VECTORS
#endif

/* floor((x - low) scale), the end bins for what lies outside. Two plain loops: compilers turn them into vectors. */
#define DEFINE_FILL_BINS(NAME, TYPE)                                                                               \
    WITH_WIDE_VECTORS static void NAME(const TYPE *x, Py_ssize_t n, double low, double scale, int bins,            \
                                       int missing, int16_t *out)                                                  \
    {                                                                                                              \
        const double last = bins - 1;                                                                              \
        int any_missing = 0;                                                                                       \
        for (Py_ssize_t j = 0; j < n; j++) {                                                                       \
            double position = ((double)x[j] - low) * scale;                                                        \
            position = position > 0 ? position : 0;                                                                \
            out[j] = (int16_t)(int32_t)(position < last ? position : last);                                        \
        }                                                                                                          \
        for (Py_ssize_t j = 0; j < n; j++)                                                                         \
            any_missing |= x[j] != x[j];                                                                           \
        for (Py_ssize_t j = 0; any_missing && j < n; j++)                                                          \
            if (x[j] != x[j])                                                                                      \
                out[j] = (int16_t)missing;                                                                         \
    }

DEFINE_FILL_BINS(fill_bins_of_floats, float)
DEFINE_FILL_BINS(fill_bins_of_doubles, double)

PyDoc_STRVAR(equal_bins_doc, "equal_bins(x, low, scale, bins, missing, out)\n--\n\n"
                             "Write the bin of each value, `missing` where it is NaN.\n\n"
                             "x: float or double [n]; out: int16 [n].");

static PyObject *equal_bins(PyObject *module, PyObject *arguments)
{
    PyObject *x, *out;
    double low, scale;
    int bins, missing;
    Py_buffer views[2];
    if (!PyArg_ParseTuple(arguments, "OddiiO:equal_bins", &x, &low, &scale, &bins, &missing, &out))
        return NULL;
    if (bins < 1 || bins > MOST_BINS || missing < NO_LEVEL || missing > MOST_BINS)
        return PyErr_Format(PyExc_ValueError, "%d bins with %d for missing do not fit 16 bits", bins, missing);
    if (!get_view(x, "x", "fd", 1, 0, &views[0]))
        return NULL;
    if (!get_view(out, "out", "h", 1, PyBUF_WRITABLE, &views[1])) {
        release(views, 1);
        return NULL;
    }
    Py_ssize_t n = views[0].shape[0];
    if (views[1].shape[0] != n) {
        release(views, 2);
        return PyErr_Format(PyExc_ValueError, "out is not as long as x");
    }
    Py_BEGIN_ALLOW_THREADS;
    if (views[0].itemsize == sizeof(float))
        fill_bins_of_floats(views[0].buf, n, low, scale, bins, missing, views[1].buf);
    else
        fill_bins_of_doubles(views[0].buf, n, low, scale, bins, missing, views[1].buf);
    Py_END_ALLOW_THREADS;
    release(views, 2);
    Py_RETURN_NONE;
}

/* Sums in cells ---------------------------------------------------------------------------------------------------- */

/* Row by row. The three sums of a cell lie side by side, so that a row touches one place; the two of the outcome are
   loaded before either is stored, so that compilers add both at once. */
static int add(const int16_t *levels, const int *first_cells, const double *outcomes, const double *weights,
               Py_ssize_t n, Py_ssize_t b, Py_ssize_t cells, double *table)
{
    int outside = 0;
    for (Py_ssize_t j = 0; j < n; j++) {
        Py_ssize_t level = levels[j], cell = first_cells[j] + level;
        if (level < 0 || level >= b || cell < 0 || cell >= cells) {
            outside |= level != NO_LEVEL;
            continue;
        }
        double *at = table + 3 * cell;
        double sum = at[0] + outcomes[2 * j], squares = at[1] + outcomes[2 * j + 1];
        at[0] = sum;
        at[1] = squares;
        at[2] += weights ? weights[j] : 1.0;
    }
    return outside;
}

PyDoc_STRVAR(add_rows_doc, "add_rows(levels, first_cells, outcomes, weights, table)\n--\n\n"
                           "Add each row to the cell of its action and level; rows of level -1 to none.\n\n"
                           "levels: int16 [n]; first_cells: int [n], the row's action times b; outcomes: double\n"
                           "[n, 2]; weights: double [n] or None; table: double [k, b, 3], two sums of outcomes and\n"
                           "one of weights.");

static PyObject *add_rows(PyObject *module, PyObject *arguments)
{
    static const struct {
        const char *name, *types;
        int dimensions, flags;
    } EXPECTED[] = {{"levels", "h", 1, 0},
                    {"first_cells", "i", 1, 0},
                    {"outcomes", "d", 2, 0},
                    {"table", "d", 3, PyBUF_WRITABLE},
                    {"weights", "d", 1, 0}};
    PyObject *given[5];
    Py_buffer views[5];
    if (!PyArg_ParseTuple(arguments, "OOOOO:add_rows", &given[0], &given[1], &given[2], &given[4], &given[3]))
        return NULL;
    int count = given[4] == Py_None ? 4 : 5;
    for (int i = 0; i < count; i++)
        if (!get_view(given[i], EXPECTED[i].name, EXPECTED[i].types, EXPECTED[i].dimensions, EXPECTED[i].flags,
                      &views[i])) {
            release(views, i);
            return NULL;
        }
    Py_ssize_t n = views[0].shape[0], b = views[3].shape[1], cells = views[3].shape[0] * b;
    if (views[1].shape[0] != n || views[2].shape[0] != n || views[2].shape[1] != 2 || views[3].shape[2] != 3 ||
        (count == 5 && views[4].shape[0] != n)) {
        release(views, count);
        return PyErr_Format(PyExc_ValueError, "the shapes do not belong together");
    }
    int outside;
    Py_BEGIN_ALLOW_THREADS;
    outside = add(views[0].buf, views[1].buf, views[2].buf, count == 5 ? views[4].buf : NULL, n, b, cells,
                  views[3].buf);
    Py_END_ALLOW_THREADS;
    release(views, count);
    if (outside)
        return PyErr_Format(PyExc_ValueError, "a level or an action lies outside of the table");
    Py_RETURN_NONE;
}

/* The module ------------------------------------------------------------------------------------------------------- */

static PyMethodDef functions[] = {{"equal_bins", equal_bins, METH_VARARGS, equal_bins_doc},
                                  {"add_rows", add_rows, METH_VARARGS, add_rows_doc},
                                  {NULL, NULL, 0, NULL}};

static PyModuleDef_Slot slots[] = {{0, NULL}};

static struct PyModuleDef definition = {.m_base = PyModuleDef_HEAD_INIT,
                                        .m_name = "ponn.cells",
                                        .m_doc = "The inner loops of Step B, compiled.",
                                        .m_methods = functions,
                                        .m_slots = slots};

PyMODINIT_FUNC PyInit_cells(void) { return PyModuleDef_Init(&definition); }

/* A library that is called libcuda and has next to nothing of it. */
int cuInit(unsigned flags) { return (int)flags; }

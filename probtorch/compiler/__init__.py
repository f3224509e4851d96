"""The compiler: record a function, optimise its graph, render native code, replay it."""

"""colbench"""
